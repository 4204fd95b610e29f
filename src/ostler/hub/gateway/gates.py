"""The hot path: while nobody waits, the relay serves a model that is in use without asking.

Before the scheduler one request of the gate's own stands for all who go through it, from the opening of the gate until
the last of them has left: a model that serves is never taken for an idle one. Each time one of them has left, another
takes its place, so that the scheduler sees how much the model is used. Only models that may serve any number of
requests at a time have a gate; with a limit each request is counted.
"""

from collections.abc import Callable
from itertools import count

from ostler.gateway import control
from ostler.gateway.core import events
from ostler.hub.gateway.instances import CLOSING, OPEN, READY, SHUT, Instance, Instances


class Gates:
    def __init__(
        self,
        instances: Instances,
        has_gate: Callable[[str], bool],
        say: Callable[[control.ToRelay], None],
        step: Callable[[events.Event], None],
    ) -> None:
        self._instances = instances
        self._has_gate = has_gate
        self._say = say
        self._step = step
        self._ids = count(-1, -1)

    def announce(self, instance: Instance) -> None:
        """Loaded; each request is asked for."""
        self._say(_opening(instance, 0))

    def open(self, instance: Instance) -> None:
        may_open = instance.gate == SHUT and instance.phase == READY and self._has_gate(instance.model)
        if may_open and self._stand_in(instance):
            instance.gate = OPEN
            self._say(_opening(instance, None))

    def _stand_in(self, instance: Instance) -> bool:
        """Another request stands for those who go through; False: the scheduler would let it wait."""
        request = next(self._ids)
        self._step(events.RequestArrived(request, instance.model))
        if instance.stands_in != request:
            self._step(events.RequestCancelled(request))
        return instance.stands_in == request

    def granted(self, instance: Instance, request: int) -> None:
        instance.stands_in = request

    def one_has_left(self, instance: Instance) -> None:
        """Who had gone through without asking."""
        if instance.gate == OPEN:
            before = instance.stands_in
            if self._stand_in(instance):
                self._step(events.ServeDone(before))

    def close(self, instance: Instance) -> None:
        if instance.gate == OPEN:
            instance.gate = CLOSING
            self._say(control.Close(instance.job_id))

    def close_all(self) -> None:
        for instance in self._instances.by_job.values():
            self.close(instance)

    def drained(self, instance: Instance) -> None:
        if instance.gate == CLOSING:
            if instance.phase == READY:
                self.announce(instance)
            self.forget(instance)

    def forget(self, instance: Instance) -> None:
        """Nobody who went through it is left: it drained, or its process or the relay is gone."""
        stands_in, instance.stands_in = instance.stands_in, 0
        instance.gate, instance.passing = SHUT, 0
        if stands_in:
            self._step(events.ServeDone(stands_in))

    def forget_all(self) -> None:
        for instance in list(self._instances.by_job.values()):
            self.forget(instance)


def _opening(instance: Instance, concurrency: int | None) -> control.Open:
    return control.Open(instance.job_id, instance.model, instance.host, instance.port, concurrency)
