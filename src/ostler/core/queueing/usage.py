"""Who has used how much lately: a decayed sum per user, in units that need no decay.

A charge made at time t counts 2^(t / half life) units, so that old charges fade against new ones by themselves and
the order of two users changes only when one of them is charged. An hour on a large device counts more than one on a
small one.
"""

from collections.abc import Iterable
from typing import Final

from ostler.core.holding import Holding
from ostler.core.room import gpu_thousandths
from ostler.domain.gpu_names import is_named
from ostler.domain.resources import Offer
from ostler.domain.scheduling import Scheduling

HALF_LIFE_S: Final = 6 * 3600.0
CPU_WEIGHT: Final = 0.02
"""A core-second beside a GPU-second: small, never zero, or CPU users would never be told apart."""
USUAL_DEVICE_MIB: Final = 24 * 1024
"""A device of this size counts as one; a larger one counts more, by its memory."""
START_QUANTUM_S: Final = 60.0
"""Charged when a task starts, so that one pass over free room is shared out too; the rest follows while it runs and at
its end."""
CHARGED_EVERY_S: Final = 300.0
_REBASE_AT: Final = 500.0


class Usage:
    def __init__(self) -> None:
        self._units: dict[str, float] = {}
        self._base = 0.0
        self.rebased = 0
        """How often the units have become others; in between, a charge only ever adds to them."""

    def charge(self, user: str, gpu_seconds: float, now: float) -> None:
        halvings = now / HALF_LIFE_S - self._base
        if halvings > _REBASE_AT:
            self._units = {name: units * 2.0**-halvings for name, units in self._units.items()}
            self._base += halvings
            self.rebased += 1
            halvings = 0.0
        self._units[user] = self._units.get(user, 0.0) + gpu_seconds * 2.0**halvings

    def users(self) -> Iterable[str]:
        return self._units

    def of(self, user: str) -> float:
        return self._units.get(user, 0.0)

    def gpu_seconds(self, user: str, now: float) -> float:
        """What a person reads: GPU-seconds as they weigh today."""
        faded: float = 2.0 ** -(now / HALF_LIFE_S - self._base)
        return self._units.get(user, 0.0) * faded


def weight(held: Holding, offer: Offer, policy: Scheduling) -> float:
    """GPU-seconds of a usual device that each second of this holding counts, for its user and for whoever would end
    it: by what is held, which may be other than what its job asks for by now."""
    cores = CPU_WEIGHT * max(1.0, held.cores_milli / 1000)
    if not held.grant.devices:
        return cores
    sizes = [device.vram_mib for device in offer.devices if device.index in held.grant.devices]
    if not sizes:
        return cores + gpu_thousandths(held, offer) / 1000
    weights = [device_weight(policy, offer.gpu_type, size, offer.gpu_names) for size in sizes]
    each = sum(weights, 0.0) / len(sizes)
    return cores + each * gpu_thousandths(held, offer) / 1000


def device_weight(policy: Scheduling, gpu_type: str, vram_mib: int, gpu_names: tuple[str, ...] = ()) -> float:
    """A weight for a longer name of the device goes before a weight for its type."""
    for name in (*gpu_names, gpu_type) if policy.weights else ():
        for known, counted in policy.weights.items():
            if is_named(known, (name,)):
                return counted
    return vram_mib / USUAL_DEVICE_MIB if vram_mib else 1.0
