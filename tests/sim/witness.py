"""A world with a witness that believes nothing that the hub says of itself: the ledger alone must give the fleet that is
in memory, again and again."""

from tests.core.portrait import difference, portrait

from ostler.core.persist import restore
from ostler.domain.records import ahead_scope, sent_ahead
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
        if self.hub_up and self.batches > before:
            self._compare_entries()
            # A restart takes the wall clock's word for how long jobs waited.
            if self.batches % COMPARE_EVERY == 0 and not self.done[WALL_JUMP]:
                self._compare_with_ledger()

    def _compare_with_ledger(self) -> None:
        kept = portrait(restore(self.ledger.load(), lambda: "", self.now, self.fleet.epoch), self.now)
        # A restart gives room to whatever was sent ahead.
        some_are_ahead = any(attempt.will is not None for attempt in self.fleet.held.values())
        for part, mine in portrait(self.fleet, self.now).items():
            if some_are_ahead and part in ("held", "holdings"):
                continue
            if told := difference(mine, kept[part]):
                raise Violation(f"{part} of the ledger and of memory differ: {told}")

    def _compare_entries(self) -> None:
        """Whatever was sent ahead, and nothing else, is in an entry, and has no row beside that."""
        entries = {
            attempt: f"{job_id}.{index}"
            for job_id in self.fleet.jobs
            for value in self.ledger.kept(ahead_scope(job_id)).values()
            for index, attempt, _ in sent_ahead(value).attempts
        }
        here = {one.id: one.task_id for one in self.fleet.held.values() if one.sent is not None}
        if told := difference(here, entries):
            raise Violation(f"what was sent ahead is not what the ledger's entries have: {told}")
        for attempt, task in entries.items():
            if task in self.ledger.tasks([task]) or self.ledger.attempts_of(task):
                raise Violation(f"{attempt} of {task} is in an entry, and in a row")


def run(seed: int) -> World:
    """One witnessed world from start to rest."""
    return live(Witness(drawn(seed)))


def run_claims(seed: int) -> World:
    """The same where most machines only claim."""
    return live(Witness(drawn(seed, Size(machines=1 + seed % 2, pullers=2 + seed % 3))))
