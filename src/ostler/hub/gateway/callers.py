"""Who may call models, and which there are: told to the relay when it begins, and whenever a token comes or goes."""

import asyncio
from collections.abc import Callable

import msgspec

from ostler.gateway import control
from ostler.gateway.settings import GatewaySettings
from ostler.hub.access import ANY_WORKER

EVERY_S = 0.2
"""When many machines join together, one word for many of their tokens."""
LOOK_S = 5.0
"""Of a token that expires nobody hears: it is looked for, and is good for a call so much longer."""
MAY_CALL = "caller"
"""The role of the configuration's keys, and of tokens for the gateway: they open the models, and nothing else."""


class Callers:
    def __init__(
        self,
        settings: GatewaySettings,
        keys: Callable[[], list[control.KeySetup]],
        now: Callable[[], float],
        say: Callable[[control.ToRelay], None],
    ) -> None:
        self.configure(settings)
        self._of_hub = keys
        self._now = now
        self._say = say
        self._said: list[control.KeySetup] = []
        self._looked = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.names: list[str] = []
        """What the hub and its gateway are called."""

    def configure(self, settings: GatewaySettings) -> None:
        of_config = [msgspec.structs.replace(key, role=MAY_CALL) for key in settings.keys]
        self._settings = msgspec.structs.replace(settings, keys=of_config)

    def _keys(self) -> list[control.KeySetup]:
        return [_as_told(key) for key in self._of_hub()]

    def tell(self) -> None:
        self._said = self._keys()
        setup = self._settings.setup(self._said)
        setup.names = self.names
        self._say(setup)

    def changed(self) -> None:
        wait_s = self._looked + EVERY_S - self._now()
        if wait_s > 0:
            self._look_in(wait_s)
        else:
            self.look()

    def look(self) -> None:
        self._looked = self._now()
        if self._said != self._keys():
            self.tell()
        self._look_in(LOOK_S)

    def _look_in(self, wait_s: float) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _as_told(key: control.KeySetup) -> control.KeySetup:
    """A token that names no worker names none to the relay either; one of role `gateway` is as a configured key."""
    if key.role == "gateway":
        return msgspec.structs.replace(key, role=MAY_CALL)
    nobody = key.role == "worker" and key.user in ANY_WORKER
    return msgspec.structs.replace(key, user="") if nobody else key
