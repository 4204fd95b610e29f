"""Tells the scheduler what becomes of the workers that model processes run on."""

from collections.abc import Callable

from ostler.core.fleet import Fleet
from ostler.domain import states
from ostler.gateway.core import events
from ostler.gateway.core.state import AWAY, CLOSED, HERE
from ostler.hub.gateway.instances import LOADING, READY, Instance, Instances


class Homes:
    """Compares the fleet with what the scheduler knows. No single message about a worker has to arrive."""

    def __init__(self, fleet: Fleet, instances: Instances, step: Callable[[events.Event], None]) -> None:
        self._fleet = fleet
        self._instances = instances
        self._step = step

    def look(self) -> None:
        for instance in self._instances.all():
            home = self._home_of(instance)
            if home != instance.home and instance.phase in (LOADING, READY):
                instance.home, instance.has_failed = home, instance.has_failed and home == AWAY
                self._step(events.PlaceChanged(instance.load, home))

    def look_anew(self) -> None:
        """For a scheduler that knows nothing of the workers yet."""
        for instance in self._instances.all():
            instance.home = HERE
        self.look()

    def _home_of(self, instance: Instance) -> str:
        worker, task = self._fleet.workers.get(instance.worker), self._fleet.find_task(instance.job_id)
        if worker is None or task is None:
            return HERE
        if worker.draining or worker.leaving:
            return CLOSED
        is_orphaned = instance.phase == READY and task.state == states.ORPHANED
        # A process on the hub's machine may answer without its worker. The tunnels to any other end with the worker.
        return AWAY if is_orphaned and (instance.way.tunnel or instance.has_failed) else HERE

    def failed(self, instance: Instance) -> None:
        """A request had no answer. Whether the process lives is known when its worker is back."""
        instance.has_failed = True
        self.look()
