"""A world with a witness that believes nothing that the hub says of itself: the ledger alone must give the fleet that is
in memory, again and again."""

from tests.core.portrait import difference, portrait

from ostler.core.persist import restore
from ostler.sim.account import Violation
from ostler.sim.campaign import live
from ostler.sim.drawing import Size, drawn
from ostler.sim.plan import WALL_JUMP
from ostler.sim.world import World

COMPARE_EVERY = 3
"""Batches, between two comparisons of the ledger with memory."""


class Witness(World):
    def _pump(self) -> None:
        before = self.batches
        super()._pump()
        if self.hub_up and self.batches > before and self.batches % COMPARE_EVERY == 0 and self._is_comparable():
            self._compare_with_ledger()

    def _is_comparable(self) -> bool:
        """A restart gives room to whatever was sent ahead, and takes the wall clock's word for how long jobs waited."""
        sent_ahead = any(attempt.will is not None for attempt in self.fleet.held.values())
        return not sent_ahead and not self.done[WALL_JUMP]

    def _compare_with_ledger(self) -> None:
        kept = portrait(restore(self.ledger.load(), lambda: "", self.now, self.fleet.epoch), self.now)
        for part, mine in portrait(self.fleet, self.now).items():
            if told := difference(mine, kept[part]):
                raise Violation(f"{part} of the ledger and of memory differ: {told}")


def run(seed: int) -> World:
    """One witnessed world from start to rest."""
    return live(Witness(drawn(seed)))


def run_claims(seed: int) -> World:
    """The same where most machines only claim."""
    return live(Witness(drawn(seed, Size(machines=1 + seed % 2, pullers=2 + seed % 3))))
