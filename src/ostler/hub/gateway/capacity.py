"""The scheduler's question whether there is room, answered by the ledger."""

from collections.abc import Callable, Collection, Mapping

from ostler.core.match import never_fits, unmet_health
from ostler.core.models import could_place
from ostler.domain.resources import Request
from ostler.hub.gateway.instances import Instances
from ostler.hub.loop import Loop


class LedgerCapacity:
    """`request_of` says what a process of a model takes of a worker."""

    def __init__(self, loop: Loop, instances: Instances, request_of: Callable[[str], Request]) -> None:
        self._loop = loop
        self._instances = instances
        self.request_of = request_of

    def fits(self, target: str, gone: Collection[int], coming: Mapping[int, str], beside: Collection[str] = ()) -> bool:
        leaving = {one.job_id for load in gone if (one := self._instances.by_load.get(load)) is not None}
        others = [model for load, model in coming.items() if load not in gone and not self._is_placed(load)]
        requests = [self.request_of(model) for model in (*others, *beside)]
        return could_place(self._loop.fleet, self.request_of(target), leaving, requests, self._loop.now())

    def could_hold(self, target: str) -> bool:
        request, now = self.request_of(target), self._loop.now()
        every = self._loop.fleet.workers.values()
        return any(not (unmet_health(worker, now) or never_fits(request, worker)) for worker in every)

    def _is_placed(self, load: int) -> bool:
        instance = self._instances.by_load.get(load)
        job = self._loop.fleet.jobs.get(instance.job_id) if instance is not None else None
        return job is not None and not job.waiting
