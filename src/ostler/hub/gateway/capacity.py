"""The scheduler's question whether there is room, answered by the ledger."""

from collections.abc import Collection

from ostler.core.models import could_place
from ostler.gateway.settings import GatewaySettings
from ostler.hub.gateway.instances import Instances
from ostler.hub.loop import Loop


class LedgerCapacity:
    def __init__(self, loop: Loop, settings: GatewaySettings, instances: Instances) -> None:
        self._loop = loop
        self.requests = {name: model.spec("x").request() for name, model in settings.models.items()}
        self._instances = instances

    def fits(self, target: str, gone: Collection[str], coming: Collection[str]) -> bool:
        """Processes that are on their way out count as gone: whoever asks has waited for no less."""
        leaving = {one.job_id for model in gone for one in self._instances.of(model)}
        requests = [self.requests[name] for name in coming if name not in gone and not self._is_placed(name)]
        fleet, now = self._loop.fleet, self._loop.now()
        return could_place(fleet, self.requests[target], leaving, requests, now)

    def _is_placed(self, model: str) -> bool:
        instance = self._instances.current.get(model)
        job = self._loop.fleet.jobs.get(instance.job_id) if instance is not None else None
        return job is not None and not job.waiting
