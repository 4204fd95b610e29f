"""Charges the time of models to the users who call them: requests in flight share the time of a process, and those that
wait for its load share the load. A process without requests costs nothing."""

from collections.abc import Callable, Mapping

from ostler.core import models as ledger_models
from ostler.core.events import ModelUsed
from ostler.core.queueing.usage import weight
from ostler.domain.quota import GATEWAY_USER
from ostler.gateway.control import Worked
from ostler.hub.gateway.instances import Instance
from ostler.hub.loop import Loop


class Spending:
    """`waited_for` returns how many requests of each user have waited for a load."""

    def __init__(self, loop: Loop, waited_for: Callable[[int], Mapping[str, int]]) -> None:
        self._loop = loop
        self._waited_for = waited_for
        self._rates: dict[str, float] = {}
        """What a second of each process counts, by its job. Kept until the relay has reported for the last time."""

    def begins(self, instance: Instance) -> None:
        """Its process runs."""
        held = ledger_models.holder(self._loop.fleet, instance.job_id)
        if held is not None and instance.job_id not in self._rates:
            offer = self._loop.fleet.workers[held.worker_id].offer
            self._rates[instance.job_id] = weight(held.held, offer, self._loop.fleet.policy)
            instance.started = self._loop.now()

    def load_ended(self, instance: Instance) -> None:
        """Ready, failed or given up."""
        requests = self._waited_for(instance.load)
        if instance.started is not None and requests:
            each_s = (self._loop.now() - instance.started) / sum(requests.values())
            self._charge(instance.job_id, {user: each_s * number for user, number in requests.items()})

    def worked(self, message: Worked) -> None:
        self._charge(message.instance, message.seconds)
        if message.last:
            self._rates.pop(message.instance, None)

    def relay_lost(self, present: Mapping[str, Instance]) -> None:
        """Nothing more is heard of processes that are gone."""
        self._rates = {job_id: rate for job_id, rate in self._rates.items() if job_id in present}

    def _charge(self, job_id: str, seconds: Mapping[str, float]) -> None:
        rate = self._rates.get(job_id)  # none for a peer, which is no part of the fleet
        if rate is not None and seconds:
            charged = {user or GATEWAY_USER: used_s * rate for user, used_s in seconds.items()}
            self._loop.post(ModelUsed(gpu_seconds=charged))
