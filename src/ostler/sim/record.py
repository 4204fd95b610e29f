"""What a campaign of many seeds came to, for whoever wants to know how much was tried."""

from collections import Counter

import msgspec

from ostler.sim.world import World


class Broken(msgspec.Struct):
    seed: int
    violation: str


class Record(msgspec.Struct, kw_only=True):
    commit: str = ""
    code: str = ""
    """A digest of the code: a tree may differ from its commit."""
    first_seed: int = 0
    seeds: int = 0
    """How many were run so far."""
    events: int = 0
    batches: int = 0
    simulated_hours: float = 0.0
    cpu_s: float = 0.0
    messages: int = 0
    lost: int = 0
    doubled: int = 0
    late: int = 0
    jobs: int = 0
    attempts: int = 0
    deeds: dict[str, int] = {}
    """What was done to the worlds, by kind."""
    broken: list[Broken] = []

    def add(self, world: World) -> None:
        network = world.network
        self.seeds += 1
        self.events += world.events
        self.batches += world.batches
        self.simulated_hours += world.now / 3600
        self.messages += network.carried
        self.lost += network.lost
        self.doubled += network.doubled
        self.late += network.late
        self.jobs += len(world.acknowledged)
        self.attempts += world.begun
        self.deeds = dict(Counter(self.deeds) + world.done)

    def merge(self, other: "Record") -> None:
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, int | float) and name != "first_seed":
                setattr(self, name, mine + theirs)
        self.deeds = dict(Counter(self.deeds) + Counter(other.deeds))
        self.broken = [*self.broken, *other.broken]

    def words(self) -> str:
        told = f"{len(self.broken)} of them broke something" if self.broken else "no violation"
        rate = self.seeds / self.cpu_s if self.cpu_s else 0.0
        return (
            f"{self.seeds} seeds, {self.events} events, {self.simulated_hours:.0f} simulated hours, {told}; "
            f"{self.cpu_s:.0f} s of CPU, {rate:.1f} seeds/s"
        )
