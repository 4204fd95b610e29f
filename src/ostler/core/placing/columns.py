"""The worth that needs would take of every machine's room, many at once and remembered.

A worker state never changes, a worker enters another one: so a number in here is true for as long as its state has
workers, and a decision computes only what no earlier one has. The same numbers as in worth.py and score.py, exactly.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ostler.core.machines import State
from ostler.core.placing.score import need_of
from ostler.core.placing.worth import FEED_SLACK, FINE, SCALE, STEP, WHOLE, Kind, Need, Worth, free_parts, machine_of
from ostler.core.room import Room
from ostler.domain.resources import Request

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
UNFIT: Final = -float(WHOLE * SCALE)
"""Where the rounded parts say that it does not fit, and the matcher knows better."""
PAIRS_AT_ONCE: Final = 512
"""What one decision computes of what it would like to know; the rest is for the next."""
NOTHING: Final = Need(0, 0, 0)
NOT_LOOKED_AT: Final = -float(1 << 60)


class Rows:
    """The worker states, each a row, whatever their room is worth."""

    def __init__(self) -> None:
        self._row: dict[State, int] = {}
        self._unused: list[int] = []
        self._row_of: Ints = np.zeros(64, np.intp)
        """By the worker's number."""
        self._rank: Ints = np.zeros(0, np.intp)
        """The order of the workers' names."""
        self.states: list[State] = []
        self.kinds: dict[Kind, int] = {}
        self.vram: list[int] = []
        """Of a GPU of each kind."""
        self.kind: Ints = np.zeros(64, np.intp)
        """-1: a machine without GPUs."""
        self.cores: Floats = np.zeros(64)
        self.free: Ints = np.full((64, 1), -1, np.intp)
        """Of each GPU, the emptiest first; -1: no GPU."""

    def row(self, state: State) -> int | None:
        return self._row.get(state)

    def add(self, state: State, room: Room) -> int:
        """`room` is that of any worker in this state."""
        row = self._row[state] = self._new_row()
        if row == len(self.states):
            self.states.append(state)
        self.states[row] = state
        free = sorted(free_parts(room), reverse=True)
        if len(free) > self.free.shape[1]:
            self.free = _grown(self.free, 1, len(free), -1)
        self.free[row] = -1
        self.free[row, : len(free)] = free
        self.cores[row] = room.cores_milli
        machine = machine_of(room.offer)
        self.kind[row] = -1 if machine is None else self._kind_number(machine.kind)
        return row

    def _kind_number(self, kind: Kind) -> int:
        if kind not in self.kinds:
            self.kinds[kind] = len(self.kinds)
            self.vram.append(kind.vram_mib)
        return self.kinds[kind]

    def _new_row(self) -> int:
        if not self._unused and len(self._row) == len(self.kind):
            for state in [state for state in self._row if not state.workers]:
                self._unused.append(self._row.pop(state))
            if len(self._row) > len(self.kind) // 2:
                size = 2 * len(self.kind)
                self.kind, self.cores = _grown(self.kind, 0, size, 0), _grown(self.cores, 0, size, 0)
                self.free = _grown(self.free, 0, size, -1)
        return self._unused.pop() if self._unused else len(self.states)

    def with_free_gpus(self, rows: list[int]) -> list[int]:
        """Those of them on which a task could take any: what the others would lose is nothing, whatever it is worth."""
        at = np.array(rows, np.intp)
        found: list[int] = at[self.free[at].max(1) > 0].tolist()
        return found

    def moved(self, workers: int, row: int) -> None:
        """These workers are in this state now."""
        if workers.bit_length() > len(self._row_of):
            self._row_of = _grown(self._row_of, 0, 2 * workers.bit_length(), 0)
        self._row_of[positions(workers)] = row

    def of(self, workers: Ints) -> Ints:
        return self._row_of[workers]

    def first_of_the_smallest(self, profile: Request, workers: Ints, names: list[str]) -> str:
        """Of these workers the one on the smallest machine, as score.leftover has it, and the first by its name."""
        rows = self._row_of[workers]
        if not profile.uses_gpu:
            size = (self.free[rows] >= 0).sum(1)
            workers = workers[size == size.min()]
        elif not profile.shares_gpu:
            size = np.array([*self.vram, 0])[self.kind[rows]]
            workers = workers[size == size.min()]
        if len(self._rank) != len(names):
            self._rank = np.empty(len(names), np.intp)
            self._rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        return names[int(workers[self._rank[workers].argmin()])]


class Columns:
    """What needs would take, by one learning of what room is worth."""

    def __init__(self, worth: Worth, rows: Rows, needs: list[Need]) -> None:
        self.worth = worth
        self.asked: dict[Need, None] = {}
        """What was asked for since."""
        self._rows = rows
        self._needs = {need: number for number, need in enumerate(dict.fromkeys([NOTHING, *needs]))}
        self._profiles: dict[Request, Ints] = {}
        """The numbers of what a request needs, by kind of machine."""
        self._need_table: Ints = np.array(list(self._needs), np.intp)
        size = len(rows.kind)
        self._left: Floats = np.full((len(self._needs), size), np.nan)
        """The worth that is left, by need and row; not a number: not computed yet; infinitely little: it does not fit.
        Without what the rests of GPUs are worth that nobody touches."""
        self._usable: Floats = np.zeros((size, len(worth.parts)))
        self._read(worth)

    def _read(self, worth: Worth) -> None:
        self._rests: Floats = np.array(worth.rests, np.float64)
        thousandths = np.arange(WHOLE + 1)[:, None]
        parts = np.array(worth.parts, np.intp)
        self._usable_of: Floats = np.where(thousandths >= parts, thousandths, 0).astype(np.float64)
        self._part_of: Ints = np.array([worth.parts.index(part) for _, part in worth.groups], np.intp)
        self._least: Floats = np.array([gpus * part for gpus, part in worth.groups], np.float64)
        self._fed_by: Floats = FEED_SLACK * self._least
        self._ranks: Ints = np.array(worth.ranks, np.intp)
        self._depth = max(worth.ranks) + 1
        self._kinds_read = 0
        self._weights: Floats = np.zeros(0)
        self._by_core: Floats = np.zeros(0)

    def _read_kinds(self) -> None:
        """Kinds of machines that are new here."""
        for kind in list(self._rows.kinds)[self._kinds_read :]:
            table = self.worth.tables.get(kind)
            none = np.zeros((len(self.worth.groups), self._depth))
            self._weights = np.append(self._weights, none if table is None else np.array(table.weights, np.float64))
            self._by_core = np.append(self._by_core, none if table is None else np.array(table.by_core, np.float64))
            self._kinds_read += 1

    def enter(self, rows: list[int]) -> None:
        """Rows that are new, or another state's than before."""
        size = len(self._rows.kind)
        if len(self._usable) < size:
            self._left, self._usable = _grown(self._left, 1, size, np.nan), _grown(self._usable, 0, size, 0)
        self._read_kinds()
        at = np.array(rows, np.intp)
        free, kind = self._rows.free[at], self._rows.kind[at]
        self._usable[at] = np.where((free >= 0)[:, :, None], self._usable_of[free], 0.0).sum(1)
        self._left[:, at] = np.where(kind < 0, 0.0, np.nan)

    def steps(self, profile: Request, rows: Ints) -> Ints:
        """What a task loses on the machines of each of these rows, in steps; the fewer the better."""
        kinds = self._rows.kind[rows]
        needs = self._needs_by_kind(profile)[kinds]
        changes = self._left[needs, rows] - self._left[0, rows]
        unknown = np.isnan(changes)
        if unknown.any():
            fresh, which = np.unique(rows[unknown], return_index=True)
            fresh, asked = fresh[:PAIRS_AT_ONCE], needs[unknown][which[:PAIRS_AT_ONCE]]
            self._compute(np.concatenate((asked, np.zeros_like(asked))), np.concatenate((fresh, fresh)))
            changes = self._left[needs, rows] - self._left[0, rows]
            changes[np.isnan(changes)] = NOT_LOOKED_AT
        changes[changes == -np.inf] = UNFIT
        amounts = (self._need_table[:, 1] * self._need_table[:, 2])[needs]
        # The last is that of machines without GPUs.
        pressure = np.array([*(self.worth.pressure.get(kind, 0) for kind in self._rows.kinds), 0], np.float64)
        change = (changes - pressure[kinds] * amounts).astype(np.int64)
        steps: Ints = -((2 * change + STEP * SCALE) // (2 * STEP * SCALE))
        return steps

    def _needs_by_kind(self, profile: Request) -> Ints:
        known = self._profiles.get(profile)
        if known is None or len(known) <= len(self._rows.kinds):
            needs = [need_of(profile, kind) for kind in self._rows.kinds]
            self.asked.update(dict.fromkeys(needs))
            known = self._profiles[profile] = np.array([*map(self._need_number, needs), 0], np.intp)
        return known

    def _need_number(self, need: Need) -> int:
        number = self._needs.setdefault(need, len(self._needs))
        if number >= len(self._need_table):
            self._need_table = _grown(self._need_table, 0, 2 * number, 0)
            self._left = _grown(self._left, 0, 2 * number, np.nan)
            self._left[number:, self._rows.kind[: self._left.shape[1]] < 0] = 0.0
        self._need_table[number] = need
        return number

    def foresee(self, rows: list[int]) -> None:
        """Compute for these rows whatever any known need could ask of them."""
        at = np.array(rows, np.intp)
        cores, gpus, part = self._need_table[: len(self._needs), :, None].transpose(1, 0, 2)
        free = self._rows.free[at]
        room = np.where(part == WHOLE, (free == WHOLE).sum(1) >= gpus, free.max(1) >= part)
        needs, which = np.nonzero(room & (self._rows.cores[at] >= cores) & (self._rows.kind[at] >= 0))
        if len(needs):
            self._compute(needs, at[which])

    def _compute(self, needs: Ints, rows: Ints) -> None:
        """Fill in the worth that is left for each pair of a need and a row."""
        cores, gpus, part = self._need_table[needs].T
        is_share = (part > 0) & (part < WHOLE)
        free = self._rows.free[rows]
        could = (free >= part[:, None]) & is_share[:, None]
        could[:, 1:] &= free[:, 1:] != free[:, :-1]
        sharing, device = np.nonzero(could)
        whole = np.nonzero(~is_share)[0]
        pair = np.concatenate((sharing, whole))
        before = np.concatenate((free[sharing, device], np.full(len(whole), WHOLE, np.intp)))
        taken, row = gpus[pair].astype(np.float64), rows[pair]
        after = np.where(taken > 0, before - part[pair], before)
        room = self._usable[row] - taken[:, None] * (self._usable_of[before] - self._usable_of[after])
        worth = self._worth(self._rows.kind[row], self._rows.cores[row] - cores[pair], room)
        worth += taken * (self._rests[after] - self._rests[before])
        found = np.full(len(needs), -np.inf)
        np.maximum.at(found, pair, worth)
        self._left[needs, rows] = found

    def _worth(self, kind: Ints, cores: Floats, usable: Floats) -> Floats:
        """Of machines with so much free, each a line; without the rests of their GPUs."""
        room, cores = usable[:, self._part_of], cores[:, None]
        fed = np.minimum(self._fed_by * cores / np.maximum(room, 1.0), cores)
        table = (kind[:, None] * len(self._least) + np.arange(len(self._least))) * self._depth
        at, up_to = table + self._rank(fed), table + self._rank(cores)
        found = room * self._weights[at] * FINE + cores * (self._by_core[up_to] - self._by_core[at])
        worth: Floats = np.where((room >= self._least) & (cores >= 0), found, 0.0).sum(1)
        return worth

    def _rank(self, cores: Floats) -> Ints:
        steps = (np.maximum(cores, 0.0) / self.worth.core_step).astype(np.intp)
        return self._ranks[np.minimum(steps, len(self._ranks) - 1)]


def positions(mask: int) -> Ints:
    """Of the bits that are set."""
    octets = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    return np.unpackbits(octets, bitorder="little").nonzero()[0]


def _grown(array: NDArray[Any], axis: int, size: int, fill: float) -> NDArray[Any]:
    shape = list(array.shape)
    shape[axis] = size - shape[axis]
    return np.concatenate((array, np.full(shape, fill, array.dtype)), axis)
