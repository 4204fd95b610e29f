"""A keeper's dealings with warm interpreters: calls are lent one, short ones of a line ahead of their turn.

A line of calls, each of which waits for the end of the one before it, costs more for being ordered about than for being
run. So the next few of a line are put into the channel of the interpreter that runs the first: as many as are likely to
be over in a moment. They still wait, as far as anybody is told, until the one before them has answered; until the
interpreter takes one out of the channel, it can be taken back. What it left there when it died was never begun.

Standard library only: the supervisor imports this.
"""

import contextlib
import os
import signal
import time
from collections import deque
from typing import Any

from ostler.runtime.attempts import LOG, WORK, Folders
from ostler.runtime.clock import Moment, also_asleep
from ostler.runtime.identity import Identity, wanted_by
from ostler.runtime.journal import Journal
from ostler.runtime.peaks import Peaks
from ostler.runtime.processes import ProcessTable
from ostler.runtime.spawn import Programs, StartFailed
from ostler.runtime.tree import Tree
from ostler.runtime.waiting import Waiting
from ostler.runtime.warm import Answer, Interpreter, Pool

NEVER = float("inf")
STRAGGLER_GRACE_S = 2.0
FIRST_PAUSE_S = 0.005
LOOK_S = 0.005
"""How often an interpreter with calls ahead is asked for its answers."""
AHEAD_S = 0.03
EACH_S = 0.00006
"""What is ahead takes no longer than this, by what the last calls took; what lies between two calls counts too."""
STUCK_S = 0.1
"""Whoever takes this long keeps nobody waiting behind it."""

SHORT_S = 0.1
"""Whoever takes this long is found by its name."""

CHECKPOINT = "OSTLER_CHECKPOINT"
_IN_ITS_FOLDER = ("OSTLER_OUT", "OSTLER_RESULT")
RUNNING, TOLD, ASKED, STOPPING, KILLING = "running", "told to stop", "asked to stop", "stopping", "killing"


class Attempt:
    """One that is not over."""

    __slots__ = (
        "began",
        "deadline_at",
        "due_at",
        "error",
        "exit_code",
        "grace_s",
        "id",
        "kill_at",
        "lease_s",
        "left_nothing",
        "made_at",
        "order",
        "pause_s",
        "phase",
        "ran_s",
        "result",
        "show_at",
        "started_at",
        "stopped",
        "task_id",
        "user",
    )

    def __init__(self, name: str, task_id: str, started_at: float, grace_s: float) -> None:
        self.id = name
        self.task_id = task_id
        self.started_at = started_at
        self.began = also_asleep()
        self.made_at: Moment | None = None
        """Before anything of it began; None if nothing did, or nobody knows when."""
        self.grace_s = grace_s
        self.phase = RUNNING
        self.due_at = NEVER
        """The next step. Running: its deadline. Told by its own command, or asked: SIGTERM. Stopping: the grace ends.
        Killing: another round."""
        self.show_at = NEVER
        """When its own name is to lead to its room."""
        self.order: dict[str, Any] = {}
        """How it was launched."""
        self.user: Identity | None = None
        """As whom it runs, if not as we do."""
        self.deadline_at = NEVER
        self.lease_s = NEVER
        self.kill_at = NEVER
        self.pause_s = FIRST_PAUSE_S
        self.exit_code: int | None = None
        """Of the main process, once that is gone."""
        self.error = ""
        self.stopped = ""
        self.result = ""
        self.left_nothing = False
        """As its interpreter has told, and another has its room by now. False: nobody has looked yet."""
        self.ran_s: float | None = None
        """As its interpreter has told."""


def made_of(order: dict[str, Any]) -> Attempt:
    attempt = Attempt(order["attempt"], order["task_id"], time.time(), order["grace_s"])
    attempt.order = order
    attempt.user = wanted_by(order)
    attempt.made_at = Moment()
    return attempt


def checkpoint_of(order: dict[str, Any]) -> str:
    checkpoint: str = order.get("env", {}).get(CHECKPOINT, "")
    return checkpoint


class Lending:
    def __init__(self, folder: str, journal: Journal, table: ProcessTable) -> None:
        self.folder = folder
        self._folders = Folders(folder, journal.path)
        self._journal = journal
        self._table = table
        self._tree = Tree(table, folder, self._folders.whose)
        self._peaks = Peaks(self._tree, table)
        self.take_samples = self._peaks.samples
        """What those that run take at the moment, where that is known anew."""
        self._programs = Programs()
        self._pool = Pool(table)
        self._live: dict[str, Attempt] = {}
        self._waiting = Waiting()
        self._ahead: dict[str, tuple[Interpreter, Attempt]] = {}
        """Of those that wait, the ones that an interpreter has in its channel, as they will be when they begin."""
        self.wake_at = NEVER
        """No attempt needs a `tick` before this; it may be earlier than needed, never later."""

    # What a keeper does

    def _set_going(self, attempt: Attempt, order: dict[str, Any], now: float) -> None:
        raise NotImplementedError

    def _ask(self, attempt: Attempt, now: float, grace_s: float) -> None:
        raise NotImplementedError

    def _due(self, attempt: Attempt, at: float) -> None:
        raise NotImplementedError

    def _finish(self, attempt: Attempt) -> None:
        raise NotImplementedError

    # Whose turn it is

    @property
    def answers_fd(self) -> int:
        """Readable when there is something to `hear`; -1 if there never is."""
        return self._pool.fileno()

    def _make_folder(self, attempt: Attempt) -> str:
        """Its path; "" if the attempt has run before."""
        if not self._folders.make(attempt.id, attempt.user):
            return ""
        folder = self._folders.path(attempt.id)
        if self._folders.has_room(attempt.id):
            env = attempt.order["env"]
            for name in _IN_ITS_FOLDER:
                where, _, file = env.get(name, "").rpartition("/")
                if where.rpartition("/")[0] == self.folder:  # else it is the user's own
                    env[name] = f"{folder}/{file}"
        return folder

    def _starting(self, attempt: Attempt) -> None:
        room = self._folders.reserve(attempt.id, attempt.user) if self._may_have_room(attempt) else ""
        self._journal.starting(
            attempt.id, attempt.task_id, attempt.started_at, checkpoint=checkpoint_of(attempt.order), room=room
        )

    def _may_have_room(self, attempt: Attempt) -> bool:
        # Where the journal cannot be written, nobody would know afterwards whose room it was.
        return bool(attempt.order.get("anywhere")) and self._journal.is_whole

    def _lend(self, attempt: Attempt, order: dict[str, Any], folder: str, now: float) -> None:
        """Give the order to an interpreter of its kind: an idle one, or else a new one."""
        taken = False
        while not taken:
            interpreter = self._pool.take_idle(order["warm"]) or self._new_interpreter(attempt, order, folder, now)
            # Whose it is stands in the journal before it begins: it shows nowhere else.
            self._journal.started(attempt.id, interpreter.pid, interpreter.ticks)
            self._journal.flush()
            self._tree.lend(interpreter.name, attempt.id, interpreter.pid, self._table.clock())
            taken = self._pool.lend(interpreter, order, folder, self._folders.has_room(attempt.id))
            if not taken:
                self._tree.hand(interpreter.pid, interpreter.name)
                self._pool.dismiss(interpreter, now)
                self.wake_at = min(self.wake_at, self._pool.wake_at)

    def _new_interpreter(self, attempt: Attempt, order: dict[str, Any], folder: str, now: float) -> Interpreter:
        os.chdir(f"{folder}/{WORK}")
        program = self._programs.find(order["argv"][0], order["env"].get("PATH", os.defpath), now)
        name = self._pool.new_name()
        self._journal.starting(name, "", attempt.started_at)
        try:
            return self._pool.spawn(name, order, program, f"{folder}/{LOG}", self._table.clock())
        except StartFailed:
            self._journal.dropped(name)
            raise

    # Ahead of their turn

    def _lend_ahead(self, now: float) -> None:
        for interpreter in self._pool.busy() if self._waiting else ():
            attempt = self._live.get(interpreter.attempt)
            if interpreter.pace_s is not None and attempt is not None and attempt.phase == RUNNING:
                self._fill(interpreter, min(interpreter.most_ahead, int(AHEAD_S / (interpreter.pace_s + EACH_S))))
                self._pool.listen(interpreter)
        if self._ahead:
            self.wake_at = min(self.wake_at, now + LOOK_S)

    def _fill(self, interpreter: Interpreter, depth: int) -> None:
        found: list[Attempt] = []
        last = self._ahead[interpreter.ahead[-1]][1] if interpreter.ahead else self._live[interpreter.attempt]
        while len(interpreter.ahead) + len(found) < depth:
            order = self._waiting.follower(last.id)
            if order is None or order.get("warm") != interpreter.key or order.get("lease_s", 0) > 0:
                break
            attempt = made_of(order)
            self._starting_behind(last, attempt, interpreter)
            found.append(attempt)
            last = attempt
        if found:
            # Before their folders are made: one that is there, and that no journal knows of, is taken for used.
            self._journal.flush()
        for place, attempt in enumerate(found):
            if not self._send_ahead(interpreter, attempt):
                for other in found[place:]:
                    self._folders.leave(other.id)
                    self._journal.dropped(other.id)
                break

    def _starting_behind(self, last: Attempt, attempt: Attempt, interpreter: Interpreter) -> None:
        room = ""
        if self._may_have_room(attempt):
            if interpreter.shares and self._folders.has_room(last.id):
                room = self._folders.share(attempt.id, last.id)
                attempt.made_at = last.made_at  # what any of them has left there is from after that
            else:
                room = self._folders.reserve(attempt.id, attempt.user)
        self._journal.starting(
            attempt.id,
            attempt.task_id,
            attempt.started_at,
            checkpoint=checkpoint_of(attempt.order),
            room=room,
            pid=interpreter.pid,
            ticks=interpreter.ticks,
            flush=False,
        )

    def _send_ahead(self, interpreter: Interpreter, attempt: Attempt) -> bool:
        """What is wrong with it is told when its turn has come."""
        try:
            folder = self._make_folder(attempt)
        except OSError:
            return False
        if not folder:
            return False
        if not self._pool.send(interpreter, attempt.order, folder, self._folders.has_room(attempt.id)):
            interpreter.most_ahead = len(interpreter.ahead)  # its channel is full
            self._not_begun([attempt.id])
            return False
        interpreter.ahead.append(attempt.id)
        self._ahead[attempt.id] = (interpreter, attempt)
        return True

    def _take_back(self, interpreter: Interpreter, now: float) -> None:
        """Whatever it has not begun waits here again, and what it has answered is known."""
        unbegun = self._pool.take_back(interpreter)
        self._not_begun([name for name in interpreter.ahead if name in unbegun])
        # Those that are left it has taken, one after the other: so they are answered in this order.
        interpreter.ahead = deque(name for name in interpreter.ahead if name not in unbegun)
        if interpreter.attempt not in unbegun:
            self._hear_from(interpreter, now)
        elif interpreter.ahead:
            self._out_of_turn(interpreter, now)
        else:
            self._begin_anew(interpreter, now)
        self._pool.listen(interpreter)

    def _not_begun(self, names: list[str]) -> None:
        """Their folders are as the worker prepared them again: without a log, which says that it was begun."""
        for name in names:
            self._ahead.pop(name, None)
            if self._folders.has_room(name):
                self._folders.leave(name)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._folders.path(name)}/{LOG}")
            self._journal.dropped(name)

    def _out_of_turn(self, interpreter: Interpreter, now: float) -> None:
        """The order of the one whose turn it is was taken back, and in that moment it took the next one: two of a line
        must not run at once, so what it has begun ends with it."""
        self._pool.kill(interpreter)
        for name in interpreter.ahead:
            self._lose(name)
        interpreter.ahead.clear()
        self._begin_anew(interpreter, now)

    def _begin_anew(self, interpreter: Interpreter, now: float) -> None:
        """It had not even begun with the one whose turn it is."""
        attempt = self._live.get(interpreter.attempt)
        if attempt is None or attempt.phase != RUNNING:
            return
        del self._live[attempt.id]
        self._tree.hand(interpreter.pid, interpreter.name)
        self._tree.remove(attempt.id)
        self._peaks.take(attempt.id)
        self._pool.over(attempt.id)
        self._pool.put_back(interpreter, now)
        if not self._folders.is_shared(attempt.id):  # else the log is that of one which was begun there
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folders.path(attempt.id)}/{LOG}")  # it may have said something when it was started
        self._not_begun([attempt.id])
        self._waiting.add(attempt.order, set())

    def _end_stuck(self, now: float) -> None:
        for interpreter in self._pool.busy():
            attempt = self._live.get(interpreter.attempt)
            if interpreter.ahead and attempt is not None and now - attempt.began > STUCK_S:
                self._take_back(interpreter, now)
                interpreter.pace_s = now - attempt.began

    # What they answer

    def hear(self, now: float) -> None:
        """Some interpreter has answered: its call is over, and so is the attempt, unless that left something behind."""
        for interpreter in self._pool.who_speaks():
            self._hear_from(interpreter, now)
            self._pool.listen(interpreter)

    def _hear_from(self, interpreter: Interpreter, now: float) -> None:
        answers = self._pool.answers(interpreter)
        for place, answer in enumerate(answers):
            attempt = self._live.get(interpreter.attempt)
            is_last = place == len(answers) - 1
            if attempt is None or answer is None:
                self._distrust(interpreter, attempt, now)
                return
            attempt.exit_code, attempt.result, attempt.ran_s = answer.exit_code, answer.result, answer.ran_s
            if attempt.phase == ASKED:
                attempt.phase, attempt.stopped = RUNNING, ""
            if attempt.phase != RUNNING:
                self._dismiss(interpreter)  # it has been sent SIGTERM, or is about to be killed: no use any more
                return
            # One with more to do has begun with that, unless it says that there may be something to see.
            is_at_rest = answer.waits or (is_last and not interpreter.ahead)
            if is_at_rest and not self._left_nothing(interpreter, attempt):
                self._tree.hand(interpreter.pid, attempt.id)
                self._dismiss(interpreter)
                self._ask(attempt, now, min(attempt.grace_s, STRAGGLER_GRACE_S))
                return
            self._go_on(interpreter, attempt, answer, now)

    def _go_on(self, interpreter: Interpreter, attempt: Attempt, answer: Answer, now: float) -> None:
        """This one is over. The next has begun by now, if there is one."""
        self._tree.hand(interpreter.pid, interpreter.name)
        if answer.waits:
            interpreter.shares = False
            self._pool.take_back(interpreter)
            self._not_begun(list(interpreter.ahead))
            interpreter.ahead.clear()
            self._pool.let_go_on(interpreter)
        attempt.left_nothing = answer.left_nothing and self._folders.vacate(attempt.id)
        self._finish(attempt)
        if not interpreter.ahead:
            self._pool.put_back(interpreter, now)
            self.wake_at = min(self.wake_at, self._pool.wake_at)
            return
        name = interpreter.ahead.popleft()
        _, following = self._ahead.pop(name)
        following.started_at, following.began = time.time(), now
        self._folders.enter(name)
        self._tree.lend(interpreter.name, name, interpreter.pid, self._table.clock())
        self._pool.belongs_to(interpreter, name)
        self._set_going(following, self._waiting.take(name), now)

    def _left_nothing(self, interpreter: Interpreter, attempt: Attempt) -> bool:
        # In this order: what leaves the interpreter comes to us, and nothing ever goes the other way.
        self._tree.hand(interpreter.pid, interpreter.name)
        return not self._table.has_children(interpreter.pid) and not self._tree.with_stragglers((attempt.id,))

    def _dismiss(self, interpreter: Interpreter) -> None:
        """It gets no more orders, and begins none of those that it has."""
        self._pool.take_back(interpreter)
        self._not_begun(list(interpreter.ahead))
        interpreter.ahead.clear()
        self._pool.hang_up(interpreter)

    def _distrust(self, interpreter: Interpreter, attempt: Attempt | None, now: float) -> None:
        """It said what it should not, or when it should not: it goes, and so does what runs in it."""
        self._pool.kill(interpreter)
        unbegun = self._pool.take_back(interpreter)
        for name in [name for name in interpreter.ahead if name not in unbegun]:
            interpreter.ahead.remove(name)
            self._lose(name)
        self._dismiss(interpreter)
        if attempt is not None:
            attempt.phase, attempt.kill_at = KILLING, now
            self._due(attempt, now)

    def _lose(self, name: str) -> None:
        """Its interpreter may have begun it, and is not to be believed: it must not begin again."""
        _, attempt = self._ahead.pop(name)
        self._waiting.take(name)
        attempt.exit_code, attempt.error = 128 + signal.SIGKILL, "nobody knows how it ended in its interpreter"
        self._finish(attempt)

    def _last_words(self, interpreter: Interpreter, now: float) -> None:
        """It is gone: what it has answered before counts, and what it has not taken waits again."""
        if interpreter.channel.fileno() >= 0:
            self._take_back(interpreter, now)
