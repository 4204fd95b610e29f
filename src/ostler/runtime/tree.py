"""Which process belongs to which attempt, and signals to all of them.

The supervisor is a subreaper: whatever a task starts stays below it, however often it forks, changes session or
leaves its parent behind. So the processes of an attempt are its main process, the orphans that came to us from it,
and everything below these. And the attempt is over when its main process is reaped and no child of ours is left that
is one of its orphans: one short read, no walk.

Whose orphan a process is shows in its session or group, in what an earlier walk saw, in the variable OSTLER_ATTEMPT,
in its working directory or its output. One that has shed all of these is held against every attempt that was there
when it started, and goes with the last of them.

Where orphans are not ours (no subreaper; or tasks of a supervisor that was killed), only the walk can tell.

Standard library only: the supervisor imports this.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable

from ostler.runtime.processes import Process, ProcessTable


class Tree:
    def __init__(self, table: ProcessTable, folder: str, whose: Callable[[str], str] = str) -> None:
        """`whose`: the attempt that has the folder of this name, below `folder`."""
        self._table = table
        self._folder = os.path.realpath(folder) + "/"
        self._whose = whose
        self._roots: dict[str, tuple[int, int]] = {}
        """Every attempt that is not over: the pid and, within a second, the start of its main process."""
        self._inherited: set[str] = set()
        """Those of a supervisor that was killed: their processes are no children of ours."""
        self._mains: dict[int, str] = {}
        """Main processes that are not reaped yet."""
        self._orphans: dict[int, str] = {}
        """Children of ours that we did not start and have not reaped: whose they are ("": unknown)."""
        self._lent: dict[str, str] = {}
        """Whose the interpreters are that go from one attempt to the next, by the name in their environment."""
        self._sessions: dict[int, str] = {}
        self._seen: dict[tuple[int, int], str] = {}

    def add(self, attempt: str, pid: int, start: int) -> None:
        """Begin to follow an attempt whose main process we have just started."""
        self._roots[attempt] = (pid, start)
        self._mains[pid] = attempt
        self._sessions[pid] = attempt

    def lend(self, name: str, attempt: str, pid: int, now: int) -> None:
        """From now on the interpreter of this name is the attempt's main process."""
        self.add(attempt, pid, now)
        self._lent[name] = attempt

    def hand(self, pid: int, owner: str) -> None:
        """Back to itself, by its own name: what is the attempt's is not below it any more. Or to the attempt again."""
        self._mains[pid] = owner

    def inherit(self, attempt: str, pid: int, start: int) -> None:
        """Begin to follow what a killed supervisor left of an attempt; the pid is 0 if it is not known."""
        self._roots[attempt] = (pid, start)
        self._inherited.add(attempt)

    def main(self, attempt: str) -> int:
        """The pid of its main process."""
        return self._roots[attempt][0]

    def reaped(self, pid: int) -> str | None:
        """This child is gone; the attempt, if it was a main process."""
        self._orphans.pop(pid, None)
        return self._mains.pop(pid, None)

    def remove(self, attempt: str) -> None:
        """The attempt is over."""
        pid, _ = self._roots.pop(attempt, (0, 0))
        self._inherited.discard(attempt)
        if self._lent:
            self._lent = {name: owner for name, owner in self._lent.items() if owner != attempt}
        if self._sessions.get(pid) == attempt:
            del self._sessions[pid]
        if self._seen or len(self._sessions) > len(self._roots):
            self._seen = {key: owner for key, owner in self._seen.items() if owner != attempt}
            self._sessions = {key: owner for key, owner in self._sessions.items() if owner != attempt}

    def with_stragglers(self, attempts: Collection[str]) -> set[str]:
        """Of these, whose main processes are gone, the ones that left something behind."""
        if not self._table.adopts:
            return {attempt for attempt, members in self.members(attempts).items() if members}
        self._look_at_orphans()
        return set(self._orphans.values()).intersection(attempts) if self._orphans else set()

    def members(self, attempts: Collection[str]) -> dict[str, list[Process]]:
        """Every process of each of these attempts that still runs; remembered, for whoever leaves its parents."""
        found = self.walk(attempts)
        for attempt, members in found.items():
            for process in members:
                # Remembered while its parents still show whose it is: it may leave them before we look again.
                self._seen[process.pid, process.start] = attempt
                self._sessions.setdefault(process.session, attempt)
        return {attempt: [one for one in members if not one.zombie] for attempt, members in found.items()}

    def walk(self, attempts: Collection[str]) -> dict[str, list[Process]]:
        """The same with those that are gone and not reaped, by one walk over all processes of the machine."""
        table = self._table.all()
        roots = self._roots_among(attempts, table)
        below = _by_parent(table)
        return {attempt: _with_descendants(roots.get(attempt, ()), below) for attempt in attempts}

    def signal(self, attempts: Collection[str], *numbers: int) -> set[str]:
        """Signal every process of these attempts once; which of them had any."""
        groups, pids = self._signal_children(attempts, numbers)
        found = set()
        for attempt, members in self.members(attempts).items():
            for process in members:
                found.add(attempt)
                if process.group not in groups and process.pid not in pids:
                    for number in numbers:
                        self._table.send(process, number)
        return found

    def _signal_children(self, attempts: Collection[str], numbers: Iterable[int]) -> tuple[set[int], set[int]]:
        """Our own children first, before the walk takes its time: one that forks and leaves is caught here.

        A child that is not reaped keeps its pid, and a main process its group, so these calls cannot hit another.
        The kernel signals a group in one go: no member forks in between. Which groups and which processes were told.
        """
        groups = {pid for pid, attempt in self._mains.items() if attempt in attempts}
        for group in groups:
            for number in numbers:
                with contextlib.suppress(OSError):
                    os.killpg(group, number)
        if self._table.adopts:
            self._look_at_orphans()
        pids = set()
        for pid, attempt in self._orphans.items():
            process = self._table.one(pid) if attempt in attempts else None
            if process and process.group not in groups:
                pids.add(pid)
                for number in numbers:
                    self._table.send(process, number)
        return groups, pids

    def _roots_among(self, attempts: Collection[str], table: dict[int, Process]) -> dict[str, list[Process]]:
        roots: dict[str, list[Process]] = {}
        walked = set(attempts) if not self._table.adopts else self._inherited.intersection(attempts)
        if walked:
            roots = self._found_by_marks(walked, table)
        if self._table.adopts:
            self._look_at_orphans()
        for pid, owner in (*self._mains.items(), *self._orphans.items()):
            if owner in attempts and pid in table:
                roots.setdefault(owner, []).append(table[pid])
        return roots

    def _found_by_marks(self, attempts: set[str], table: dict[int, Process]) -> dict[str, list[Process]]:
        owners = {}
        for attempt in attempts:
            pid, start = self._roots[attempt]
            main = table.get(pid)
            # As long as its session or group has members no other process gets its pid: if one has it, none is left.
            if pid and (main is None or self._is_same(main, start)):
                owners[pid] = attempt
        marked = self._table.attempts_in_environments()
        spared = _ancestors(os.getpid(), table)
        found: dict[str, list[Process]] = {}
        for pid, process in table.items():
            owner = owners.get(pid) or owners.get(process.session) or owners.get(process.group)
            owner = owner or self._seen.get((pid, process.start)) or marked.get(pid)
            if owner in attempts and pid not in spared:
                found.setdefault(owner, []).append(process)
        return found

    def _is_same(self, process: Process, start: int) -> bool:
        # The start was taken from the clock, next to the spawn. No pid comes round again within a second.
        return abs(process.start - start) <= self._table.second

    def _look_at_orphans(self) -> None:
        for pid in self._table.children():
            if pid not in self._mains and not self._orphans.get(pid):
                self._orphans[pid] = self._owner(pid)

    def _owner(self, pid: int) -> str:
        process = self._table.one(pid)
        if process is None:
            return ""
        owner = (
            self._seen.get((pid, process.start))
            or self._sessions.get(process.session)
            or self._sessions.get(process.group)
            or self._owner_by_marks(pid)
        )
        owner = owner or self._last_possible_owner(process)
        if owner:
            self._sessions.setdefault(process.session, owner)
        return owner

    def _last_possible_owner(self, process: Process) -> str:
        """Whose it must be, because nobody else who could have started it still runs; "" while several do."""
        second = self._table.second
        possible = [attempt for attempt, (_, start) in self._roots.items() if start <= process.start + second]
        running = set(self._mains.values()).intersection(possible)
        if not possible:
            # Nobody's: its attempt ended while it could have been another's, and now there is no other.
            self._table.send(process, signal.SIGKILL)
        if len(possible) == 1 or (possible and not running):
            return possible[0]
        return ""

    def _owner_by_marks(self, pid: int) -> str:
        named = self._table.attempt_in_environment(pid)
        named = self._lent.get(named, named)
        if named in self._roots:
            return named
        for place in self._table.places(pid):
            if place.startswith(self._folder):
                attempt = self._whose(place[len(self._folder) :].split("/", 1)[0])
                if attempt in self._roots:
                    return attempt
        return ""


def _by_parent(table: dict[int, Process]) -> dict[int, list[Process]]:
    below: dict[int, list[Process]] = {}
    for process in table.values():
        below.setdefault(process.parent, []).append(process)
    return below


def _with_descendants(roots: Iterable[Process], below: dict[int, list[Process]]) -> list[Process]:
    found: dict[int, Process] = {}
    waiting = list(roots)
    while waiting:
        process = waiting.pop()
        if process.pid not in found:
            found[process.pid] = process
            waiting += below.get(process.pid, ())
    return list(found.values())


def _ancestors(pid: int, table: dict[int, Process]) -> set[int]:
    """This process and those above it: no mark whatsoever makes them part of a task."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found
