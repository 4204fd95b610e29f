"""What room is worth, and for a large fleet what every task would take of it, kept from one decision to the next.

It is learnt anew while decisions go on by what was known; they change over when all that they need is there.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ostler.core.index import Index
from ostler.core.placing.mix import Mix
from ostler.core.placing.worth import Need
from ostler.domain.resources import Request

if TYPE_CHECKING:
    from ostler.core.fleet import Worker
    from ostler.core.placing.columns import Columns, Ints, Rows

FORESEEN = 4
"""Worker states for which one decision computes whatever any known shape could ask of them."""
FEW: Final = 2
"""New worker states for which that is done at once."""
STATES_AT_ONCE: Final = 512
"""Worker states that one decision gets to know; the others are left to the next."""


class Board:
    def __init__(self, mix: Mix) -> None:
        self.worth = mix.worth
        """By which decisions go."""
        self._mix = mix
        self._rows: Rows | None = None
        self._columns: Columns | None = None
        self._coming: Columns | None = None
        self._to_foresee: list[int] = []

    def learn(self) -> None:
        """A little of what has to be done until decisions go by what is asked for now."""
        if self._coming is not None:
            self._foresee(self._coming)
        elif self._mix.learn():
            if self._columns is None:
                self.worth = self._mix.worth
            else:
                self._begin(list(self._columns.asked))
        if self.worth.insisted:
            self.worth.press(self._mix.free_gpus)

    def best(self, index: Index, workers: "Mapping[str, Worker]", profile: Request, among: int) -> str:
        """The one of these workers whose room would lose least; of several the one on the smallest machine."""
        rows, numbers, steps = self.scored(index, workers, profile, among)
        return rows.first_of_the_smallest(profile, numbers[steps == steps.min()], index.names)

    def scored(
        self, index: Index, workers: "Mapping[str, Worker]", profile: Request, among: int
    ) -> "tuple[Rows, Ints, Ints]":
        """The numbers of these workers, and how many steps the room of each would lose."""
        from ostler.core.placing.columns import Columns, Rows, positions

        if self._rows is None or self._columns is None:
            self._rows = Rows()
            self._columns = Columns(self.worth, self._rows, [])
        index.machines.enter_states(among)
        unknown = self._take_note(self._rows, index, workers, among & index.machines.moved)
        numbers = positions(among ^ unknown)
        return self._rows, numbers, self._columns.steps(profile, self._rows.of(numbers))

    def _take_note(self, rows: "Rows", index: Index, workers: "Mapping[str, Worker]", moved: int) -> int:
        """Look up the rows of workers that are in another state now; those of them that were too many for that."""
        new: list[int] = []
        index.machines.moved ^= moved
        while moved and len(new) < STATES_AT_ONCE:
            number = moved.bit_length() - 1
            state = index.machines.state_of(number)
            row = rows.row(state)
            if row is None:
                row = rows.add(state, workers[index.names[number]].room)
                new.append(row)
            rows.moved(moved & state.workers, row)
            moved ^= moved & state.workers
        index.machines.moved |= moved
        if new and self._columns is not None:
            self._columns.enter(new)
            if len(new) <= FEW:  # or it is not worth while: what is asked for now is computed anyway
                self._columns.foresee(new)
            if self._coming is not None:
                self._coming.enter(new)
                self._to_foresee += rows.with_free_gpus(new)
        return moved

    def _begin(self, needs: list[Need]) -> None:
        from ostler.core.placing.columns import Columns

        assert self._rows is not None
        self._coming = Columns(self._mix.worth, self._rows, needs)
        occupied = [row for row, state in enumerate(self._rows.states) if state.workers]
        self._coming.enter(occupied)
        self._to_foresee = self._rows.with_free_gpus(occupied)

    def _foresee(self, coming: "Columns") -> None:
        assert self._rows is not None
        rows = [row for row in self._to_foresee[-FORESEEN:] if self._rows.states[row].workers]
        del self._to_foresee[-FORESEEN:]
        if rows:
            coming.foresee(rows)
        if not self._to_foresee:
            self._columns, self._coming, self.worth = coming, None, coming.worth
