"""Tunnels to models on other machines: the relay asks for one, the worker there opens it, the hub passes the word."""

from collections.abc import Callable

from ostler.core import models as ledger_models
from ostler.core.fleet import Fleet
from ostler.gateway import control
from ostler.hub.relays import Relays, Target
from ostler.wire.messages import RelayRequest


class Tunnels:
    def __init__(self, fleet: Fleet, relays: Relays, say: Callable[[control.ToRelay], None]) -> None:
        self._fleet = fleet
        self._relays = relays
        self._say = say

    def needed(self, message: control.NeedTunnel, port: int, url: str = "") -> None:
        """`port` is where the relay listens, `url` what it is called elsewhere."""
        key, target = message.key, self._target(message.instance)
        if target is None:
            self._say(control.NoTunnel(key, "its process has ended"))
            return
        request = RelayRequest(relay_id=key, task_id=target.task_id, attempt=target.attempt, port=port, url=url)
        self._relays.ask_for_tunnel(target, request, lambda reason: self._say(control.NoTunnel(key, reason)))

    def _target(self, job_id: str) -> Target | None:
        held = ledger_models.holder(self._fleet, job_id)
        if held is None:
            return None
        return Target(job_id, held.id, held.worker_id, self._fleet.workers[held.worker_id].session)
