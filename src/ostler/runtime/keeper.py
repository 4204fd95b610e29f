"""The attempts that a supervisor holds: from their start to the moment when nothing of them is left.

No sockets here; the clock is an argument. `supervisor.py` calls in, and takes away what has ended.

Standard library only: the supervisor imports this.
"""

import contextlib
import os
import signal
import time
from collections import OrderedDict
from typing import Any

from ostler.runtime.attempts import LOG, WORK, is_attempt_name
from ostler.runtime.clock import also_asleep
from ostler.runtime.groups import Groups
from ostler.runtime.identity import as_owner, wanted_by
from ostler.runtime.journal import Journal
from ostler.runtime.lending import (
    ASKED,
    CHECKPOINT,
    FIRST_PAUSE_S,
    KILLING,
    LOOK_S,
    NEVER,
    RUNNING,
    SHORT_S,
    STOPPING,
    STRAGGLER_GRACE_S,
    TOLD,
    Attempt,
    Lending,
    checkpoint_of,
    made_of,
)
from ostler.runtime.news import News
from ostler.runtime.processes import ProcessTable
from ostler.runtime.spawn import NOT_EXECUTABLE, StartFailed, spawn
from ostler.runtime.warm import LEAVING_S, NAMES

LONGEST_PAUSE_S = 0.5
KILL_ROUNDS = 8
MAX_FORGOTTEN = 4096
UNKNOWN_EXIT = 128 + signal.SIGKILL
PID = "{pid}"
LOST_CONTACT = "lost contact"
LEASE_LOOK_S = 1.0
"""How often it is seen whether contact was lost: who sleeps with the machine is not woken in time."""


class Keeper(Lending):
    def __init__(self, folder: str, journal: Journal, table: ProcessTable) -> None:
        super().__init__(folder, journal, table)
        self.groups = Groups()
        self._closing: dict[str, Attempt] = {}
        """Those of the live ones whose main process we have reaped."""
        self._inherited: set[str] = set()
        """Those of the live ones that a killed supervisor left."""
        self._forgotten: OrderedDict[str, dict[str, Any]] = OrderedDict()  # a plain one does not know its first
        """The latest of them: a launch that comes late or twice must not start one of these again."""
        self._news = News(journal, self._folders)
        self._contact_at = -NEVER
        """When the hub was last in contact, as far as a worker has told. Nothing but that tells: an order may have lain
        in some buffer while everybody here stood still."""

    @property
    def busy(self) -> bool:
        return bool(self._live or self._waiting)

    def held(self) -> list[dict[str, Any]]:
        waiting = [
            {**_held(name, order["task_id"], 0.0, order), "after": sorted(after)}
            for name, order, after in self._waiting
        ]
        live = [
            _held(one.id, one.task_id, one.started_at, one.order)
            for one in self._live.values()
            if not one.id.startswith(NAMES)
        ]
        ended = [
            {
                "attempt": name,
                "task_id": end["task_id"],
                "started_at": end.get("started_at", 0.0),
                "checkpoint": end.get("checkpoint", ""),
                "ended": end,
            }
            for name, end in self._journal.ends.items()
        ]
        return waiting + live + ended

    def take_news(self, now: float = NEVER) -> list[str]:
        """The ends that are to be told by now, encoded. Those that are to be told later are on the disk as well."""
        return self._news.take(now)

    @property
    def tell_at(self) -> float:
        """When the next are to be told."""
        return self._news.tell_at

    def take_peaks(self) -> dict[str, int]:
        """How much memory what runs has taken at most, in MiB, where that is news."""
        return self._peaks.news()

    @property
    def waits(self) -> bool:
        """Whether the journal has something that may wait, but not for ever."""
        return self._journal.waits

    def flush(self) -> None:
        self._journal.flush()

    def leave(self) -> None:
        """Nothing is held any more: send the idle interpreters away, and see them gone."""
        kill_at = also_asleep() + LEAVING_S
        while self._pool.dismiss_all(now := also_asleep()) and now < kill_at + LEAVING_S:
            if now >= kill_at:
                self._pool.kill_all()
            time.sleep(FIRST_PAUSE_S)
            self.reap(now)
        self.give_up_prepared()
        self._folders.close()
        self._journal.flush()

    # What the worker asks for

    def prepare(self, order: dict[str, Any], now: float) -> None:
        """Look for its program, and have its folder there."""
        name = order["attempt"]
        if not is_attempt_name(name) or order.get("anywhere") or self._knows(name):
            return
        self.give_up_prepared()
        user = wanted_by(order)
        with contextlib.suppress(OSError, StartFailed):
            if self._journal.is_whole and self._folders.can_prepare(name, user):
                self._journal.preparing(name)
                self._folders.prepare(name, user)
            self._programs.find(order["argv"][0], order["env"].get("PATH", os.defpath), now)

    def give_up_prepared(self) -> None:
        """It has not been launched. If it is after all, then perhaps by another supervisor: nothing of it stays."""
        if name := self._journal.prepared:
            self._folders.give_up(name)
            self._journal.preparing("")

    def launch(self, order: dict[str, Any], now: float) -> None:
        name = order["attempt"]
        if not is_attempt_name(name):
            raise ValueError(f"not an attempt id: {name!r}")
        if self._knows(name):
            return
        if order.get("memory_mib") and self.groups.usable:
            order["warm"] = ""  # an interpreter that goes from one to the next has no group of any
        if (end := self._forgotten.pop(name, None)) is not None:
            self._news.add(end)
        elif after := {other for other in order.get("after", ()) if other in self._live or other in self._waiting}:
            self._waiting.add(order, after)
        else:
            self._launch(order, now)

    def _knows(self, name: str) -> bool:
        return name in self._live or name in self._waiting or name in self._journal.ends

    def start_ready(self, now: float) -> None:
        """Start what waited for ends that have come by now."""
        while (order := self._waiting.take_ready()) is not None:
            self._launch(order, now)
        self._lend_ahead(now)

    def stop(self, name: str, reason: str, grace_s: float, now: float) -> None:
        if self.call_back(name, reason, now):
            return
        attempt = self._live.get(name)
        if attempt is None:
            return
        if attempt.phase == RUNNING:
            attempt.stopped = reason
            if not attempt.order.get("stop") or grace_s <= 0 or not self._tell_to_stop(attempt, now, grace_s):
                self._ask(attempt, now, grace_s)
                self.call_back(name, reason, now)  # if it shows now that it had not been begun
        else:
            attempt.kill_at = min(attempt.kill_at, now + grace_s)
            self._due(attempt, min(attempt.due_at, attempt.kill_at))

    def call_back(self, name: str, reason: str, now: float) -> bool:
        """False: it does not wait. Whoever comes after it waits for what it waited for."""
        if name in self._ahead:
            self._take_back(self._ahead[name][0], now)
        if name not in self._waiting:
            return False
        self._end_unstarted(self._waiting.let_go(name), reason)
        return True

    def _end_unstarted(self, order: dict[str, Any], reason: str) -> None:
        never_started = Attempt(order["attempt"], order["task_id"], 0.0, 0.0)
        never_started.exit_code, never_started.stopped = 128 + signal.SIGTERM, reason
        self._finish(never_started)

    def stop_all(self, reason: str, now: float) -> None:
        for name in [name for name, *_ in self._waiting]:
            self.stop(name, reason, 0.0, now)
        for attempt in list(self._live.values()):
            self.stop(attempt.id, reason, attempt.grace_s, now)

    def beside(self, name: str, argv: list[str], env: dict[str, str], now: float) -> str:
        """Start one more process of an attempt that runs, which ends with it; or why not."""
        attempt = self._live.get(name)
        if attempt is None or attempt.phase != RUNNING:
            return "the task does not run any more"
        try:
            self._spawn_beside(attempt, argv, {**attempt.order["env"], **env}, os.devnull, now)
        except (StartFailed, OSError) as error:
            return str(error)
        return ""

    def renew(self, contact_at: float, now: float) -> None:
        """Contact with the hub, at that time: what runs on a lease may go on."""
        self._contact_at = max(self._contact_at, min(contact_at, now))
        for attempt in self._live.values():
            if attempt.phase == RUNNING and attempt.lease_s < NEVER:
                self._due(attempt, self._ends_at(attempt))

    def _ends_at(self, attempt: Attempt) -> float:
        leased = attempt.lease_s < NEVER
        return min(attempt.deadline_at, self._contact_at + attempt.lease_s) if leased else attempt.deadline_at

    def forget(self, name: str) -> None:
        end = self._journal.ends.get(name)
        if end is not None:
            self._journal.forgotten(name)
            self._folders.release(name, as_new=end.get("left_nothing", False))
            end.pop("room", None)  # it may be another's from now on
            # A result may be large, and whoever forgets an end has it.
            self._forgotten[name] = {**end, "result": ""} if end.get("result") else end
            if len(self._forgotten) > MAX_FORGOTTEN:
                self._forgotten.popitem(last=False)

    # What happens by itself

    def reap(self, now: float) -> None:
        """Some child has ended: take all that did, and see which attempts are over."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if (gone := self._pool.with_pid(pid)) is not None:
                self._last_words(gone, now)
            name = self._tree.reaped(pid)
            if (interpreter := self._pool.reaped(pid)) is not None:
                self._journal.dropped(interpreter.name)
            elif name is not None:
                attempt = self._closing[name] = self._live[name]
                self._peaks.reaped(name, used)
                code = os.waitstatus_to_exitcode(status)
                if attempt.exit_code is None:
                    attempt.exit_code = code if code >= 0 else 128 - code
                if attempt.phase == ASKED:
                    # It ended before the SIGTERM that it was to get: by itself.
                    attempt.phase, attempt.stopped = RUNNING, ""
        if self._closing:
            self._settle(now)

    def tick(self, now: float) -> None:
        """Take the steps that are due: deadlines, ends of graces, rounds of killing. Many at once: one walk for all."""
        if self._ahead:
            self.hear(now)
            self._end_stuck(now)
        self._show_long(now)
        due = [attempt for attempt in self._live.values() if attempt.due_at <= now]
        for attempt in due:
            if attempt.phase == RUNNING:
                attempt.stopped = "max_runtime" if attempt.deadline_at <= now else LOST_CONTACT
                self._ask(attempt, now, attempt.grace_s)
        if asked := [attempt for attempt in due if attempt.phase in (TOLD, ASKED)]:
            # A stopped process acts on SIGTERM only once it is continued.
            self._tree.signal({attempt.id for attempt in asked}, signal.SIGTERM, signal.SIGCONT)
            for attempt in asked:
                attempt.phase, attempt.due_at = STOPPING, attempt.kill_at
        if dying := [attempt for attempt in due if attempt.due_at <= now]:
            self._kill(dying, now)
        if now >= self._pool.wake_at:
            self._pool.tick(now)
        self._peaks.tick(now)
        self.wake_at = min((min(one.due_at, one.show_at) for one in self._live.values()), default=NEVER)
        self.wake_at = min(self.wake_at, self._pool.wake_at, self._peaks.wake_at)
        if any(attempt.lease_s < NEVER for attempt in self._live.values()):
            self.wake_at = min(self.wake_at, now + LEASE_LOOK_S)
        if self._ahead:
            self.wake_at = min(self.wake_at, now + LOOK_S)

    def _show_long(self, now: float) -> None:
        """Whoever wants to see what they have printed so far looks for it under their names."""
        for attempt in self._live.values():
            if attempt.show_at <= now:
                attempt.show_at = NEVER
                with contextlib.suppress(OSError):
                    self._folders.show(attempt.id)

    def recover(self, now: float) -> None:
        """Take over what an earlier supervisor of this folder left: its ends, and its processes, which are killed.

        Nobody can be told how those processes would have ended: they were never children of this one.
        """
        self.give_up_prepared()
        both = (self._journal.ends, self._journal.starts)
        self._folders.recover({name: one["room"] for known in both for name, one in known.items() if one.get("room")})
        for name, task in self._journal.starts.items():
            same_boot = task.get("boot") == self._table.boot
            attempt = Attempt(name, task.get("task_id", ""), task.get("started_at", 0.0), 0.0)
            pid, start = (task.get("pid", 0), task.get("ticks", 0)) if same_boot else (0, 0)
            self._tree.inherit(name, pid, start)
            attempt.order = {"env": {CHECKPOINT: task.get("checkpoint", "")}}
            attempt.error = "ended while nobody watched"
            attempt.exit_code = UNKNOWN_EXIT
            attempt.phase = KILLING
            self._live[name] = attempt
            self._inherited.add(name)
            self._due(attempt, now)

    # The steps

    def _launch(self, order: dict[str, Any], now: float) -> None:
        if 0 < order.get("lease_s", 0) <= now - self._contact_at:
            self._end_unstarted(order, LOST_CONTACT)
            return
        attempt = made_of(order)
        try:
            self._start(attempt, order, now)
        except StartFailed as error:
            attempt.error, attempt.exit_code = str(error), error.exit_code
            self._finish(attempt)
        except OSError as error:
            attempt.error, attempt.exit_code = f"the task's folder could not be made: {error}", NOT_EXECUTABLE
            self._finish(attempt)
        else:
            self._set_going(attempt, order, now)

    def _set_going(self, attempt: Attempt, order: dict[str, Any], now: float) -> None:
        self._live[attempt.id] = attempt
        if order["deadline_s"] > 0:
            attempt.deadline_at = now + order["deadline_s"]
        if order.get("lease_s", 0) > 0:
            attempt.lease_s = order["lease_s"]
            self.wake_at = min(self.wake_at, now + LEASE_LOOK_S)
        self._due(attempt, self._ends_at(attempt))
        if self._folders.has_room(attempt.id):
            attempt.show_at = now + SHORT_S
            self.wake_at = min(self.wake_at, attempt.show_at)
        self._peaks.begin(attempt.id, now)
        self.wake_at = min(self.wake_at, self._peaks.wake_at)

    def _start(self, attempt: Attempt, order: dict[str, Any], now: float) -> None:
        name, argv, env = attempt.id, order["argv"], order["env"]
        is_warm = bool(order.get("warm")) and self._pool.usable
        self._starting(attempt)
        folder = self._make_folder(attempt)
        if not folder:
            raise StartFailed(NOT_EXECUTABLE, "this attempt has run before and its end is no longer known")
        # The spawn cannot change directory, so this process does: it has one thread, and all its other paths are full.
        if is_warm:
            self._lend(attempt, order, folder, now)
            return
        os.chdir(f"{folder}/{WORK}")
        program = self._programs.find(argv[0] if argv else "", env.get("PATH", os.defpath), now)
        with self.groups.inside(name, order.get("memory_mib", 0)):
            pid = spawn(program, argv, env, f"{folder}/{LOG}", user=attempt.user)
        ticks = self._table.clock()
        self._tree.add(name, pid, ticks)
        self._journal.started(name, pid, ticks)

    def _ask(self, attempt: Attempt, now: float, grace_s: float) -> None:
        """To be sent SIGTERM by the `tick` of this same turn."""
        if (interpreter := self._pool.of(attempt.id)) is not None and interpreter.ahead:
            self._take_back(interpreter, now)
        if attempt.id in self._live:
            attempt.phase, attempt.kill_at = ASKED, now + grace_s
            self._due(attempt, now)

    def _tell_to_stop(self, attempt: Attempt, now: float, grace_s: float) -> bool:
        """By its own command, which is a process of the attempt's like any other. False: it cannot be started."""
        folder = self._folders.path(attempt.id)
        argv = [word.replace(PID, str(self._tree.main(attempt.id))) for word in attempt.order["stop"]]
        try:
            self._spawn_beside(attempt, argv, attempt.order["env"], f"{folder}/{LOG}", now)
        except (StartFailed, OSError) as error:
            with contextlib.suppress(OSError), as_owner(folder):
                _add_line(f"{folder}/{LOG}", f"the command that stops it could not be started: {error}")
            return False
        attempt.phase, attempt.kill_at = TOLD, now + 2 * grace_s
        self._due(attempt, now + grace_s)
        return True

    def _spawn_beside(self, attempt: Attempt, argv: list[str], env: dict[str, str], log: str, now: float) -> None:
        os.chdir(f"{self._folders.path(attempt.id)}/{WORK}")
        program = self._programs.find(argv[0], env.get("PATH", os.defpath), now)
        with self.groups.inside(attempt.id, attempt.order.get("memory_mib", 0)):
            spawn(program, argv, env, log, user=attempt.user, beside=True)

    def _settle(self, now: float) -> None:
        """An attempt whose main process is gone is over, unless that left something behind."""
        left = self._tree.with_stragglers(self._closing)
        for attempt in list(self._closing.values()):
            if attempt.id not in left:
                self._finish(attempt)
            elif attempt.phase in (RUNNING, TOLD):
                self._ask(attempt, now, min(attempt.grace_s, STRAGGLER_GRACE_S))

    def _kill(self, dying: list[Attempt], now: float) -> None:
        """A task may fork while it is being killed, so a round is repeated at once while it finds anything."""
        names = {attempt.id for attempt in dying}
        for _ in range(KILL_ROUNDS):
            found = self._tree.signal(names, signal.SIGKILL)
            self.reap(now)
            for name in names & self._inherited:
                if name in found:
                    self._live[name].error = "supervisor was killed; exit code unknown"
                else:
                    self._finish(self._live[name])
            names &= found & self._live.keys()
            if not names:
                break
        for attempt in dying:
            # Even one of which nothing was found: its end shows when it is reaped, and if not, we look again.
            attempt.phase, attempt.pause_s = KILLING, min(2 * attempt.pause_s, LONGEST_PAUSE_S)
            attempt.due_at = now + attempt.pause_s

    def _finish(self, attempt: Attempt) -> None:
        end = {
            "attempt": attempt.id,
            "task_id": attempt.task_id,
            "exit_code": attempt.exit_code,
            "error": attempt.error,
            "stopped": attempt.stopped,
            "started_at": attempt.started_at,
            "finished_at": time.time(),
            "result": attempt.result,
            "ran_s": self._ran_s(attempt),
            "peak_memory_mib": self._peaks.take(attempt.id),
        }
        if attempt.left_nothing:
            end["left_nothing"] = True
        self._live.pop(attempt.id, None)
        self._closing.pop(attempt.id, None)
        self._inherited.discard(attempt.id)
        self._tree.remove(attempt.id)
        self.groups.leave(attempt.id)
        is_followed = self._waiting.ended(attempt.id)
        if (interpreter := self._pool.over(attempt.id)) is not None:
            self._journal.dropped(interpreter.name)
        if attempt.id.startswith(NAMES):
            self._journal.dropped(attempt.id)  # an interpreter that a killed supervisor left: nobody asks for its end
        else:
            # As long as more wait than have ended: those that come after them must be here in time.
            self._news.add(end, attempt.made_at, followed=is_followed and len(self._waiting) > len(self._news))

    def _ran_s(self, attempt: Attempt) -> float:
        if attempt.ran_s is not None:
            return attempt.ran_s
        return also_asleep() - attempt.began if attempt.id not in self._inherited else 0.0

    def _due(self, attempt: Attempt, at: float) -> None:
        attempt.due_at = at
        self.wake_at = min(self.wake_at, at)


def _held(name: str, task_id: str, started_at: float, order: dict[str, Any]) -> dict[str, Any]:
    checkpoint = checkpoint_of(order)
    return {"attempt": name, "task_id": task_id, "started_at": started_at, "checkpoint": checkpoint, "ended": None}


def _add_line(log: str, text: str) -> None:
    """Whatever the task has made of its log: a pipe is not waited for."""
    with open(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC), "ab") as file:
        file.write(f"{text}\n".encode(errors="replace"))
