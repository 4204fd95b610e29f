"""The attempts that a supervisor holds: from their start to the moment when nothing of them is left.

No sockets here; the clock is an argument. `supervisor.py` calls in, and takes away what has ended.

Standard library only: the supervisor imports this.
"""

import os
import signal
import time
from typing import Any

from ostler.runtime.attempts import LOG, WORK, Folders, is_attempt_name
from ostler.runtime.frames import quote
from ostler.runtime.journal import Journal
from ostler.runtime.peaks import Peaks
from ostler.runtime.processes import ProcessTable
from ostler.runtime.spawn import NOT_EXECUTABLE, Programs, StartFailed, spawn
from ostler.runtime.tree import Tree
from ostler.runtime.warm import LEAVING_S, NAMES, Interpreter, Pool

STRAGGLER_GRACE_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.5
KILL_ROUNDS = 8
MAX_FORGOTTEN = 4096
NEVER = float("inf")
UNKNOWN_EXIT = 128 + signal.SIGKILL

RUNNING, TOLD, ASKED, STOPPING, KILLING = "running", "told to stop", "asked to stop", "stopping", "killing"
PID = "{pid}"


class Attempt:
    """One that is not over."""

    def __init__(self, name: str, task_id: str, started_at: float, grace_s: float) -> None:
        self.id = name
        self.task_id = task_id
        self.started_at = started_at
        self.began = time.monotonic()
        self.grace_s = grace_s
        self.phase = RUNNING
        self.due_at = NEVER
        """The next step. Running: its deadline. Told by its own command, or asked: SIGTERM. Stopping: the grace ends.
        Killing: another round."""
        self.stop_argv: list[str] = []
        self.env: dict[str, str] = {}
        """For the command that stops it; without one, nothing."""
        self.deadline_at = NEVER
        self.lease_s = NEVER
        self.kill_at = NEVER
        self.pause_s = FIRST_PAUSE_S
        self.exit_code: int | None = None
        """Of the main process, once that is gone."""
        self.error = ""
        self.stopped = ""
        self.result = ""


class Keeper:
    def __init__(self, folder: str, journal: Journal, table: ProcessTable) -> None:
        self._folders = Folders(folder)
        self._journal = journal
        self._table = table
        self._tree = Tree(table, folder)
        self._peaks = Peaks(self._tree, table)
        self._programs = Programs()
        self._pool = Pool(table)
        self._live: dict[str, Attempt] = {}
        self._closing: dict[str, Attempt] = {}
        """Those of the live ones whose main process we have reaped."""
        self._inherited: set[str] = set()
        """Those of the live ones that a killed supervisor left."""
        self._forgotten: dict[str, dict[str, Any]] = {}
        """The latest of them: a launch that comes late or twice must not start one of these again."""
        self._waiting: dict[str, tuple[dict[str, Any], set[str]]] = {}
        """Orders to launch, each with the attempts whose end it waits for."""
        self._news: list[str] = []
        self._contact_at = -NEVER
        """When the hub was last in contact, as far as a worker has told."""
        self.wake_at = NEVER
        """No attempt needs a `tick` before this; it may be earlier than needed, never later."""

    @property
    def busy(self) -> bool:
        return bool(self._live or self._waiting)

    def held(self) -> list[dict[str, Any]]:
        waiting = [
            {"attempt": name, "task_id": order["task_id"], "started_at": 0.0, "after": sorted(after), "ended": None}
            for name, (order, after) in self._waiting.items()
        ]
        live = [
            {"attempt": one.id, "task_id": one.task_id, "started_at": one.started_at, "ended": None}
            for one in self._live.values()
            if not one.id.startswith(NAMES)
        ]
        ended = [
            {"attempt": name, "task_id": end["task_id"], "started_at": end.get("started_at", 0.0), "ended": end}
            for name, end in self._journal.ends.items()
        ]
        return waiting + live + ended

    def take_news(self) -> list[str]:
        """The ends since the last call, encoded; they are on the disk when this returns."""
        if not self._news:
            return []
        self._journal.flush()
        news, self._news = self._news, []
        return news

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
        kill_at = time.monotonic() + LEAVING_S
        while self._pool.dismiss_all(now := time.monotonic()) and now < kill_at + LEAVING_S:
            if now >= kill_at:
                self._pool.kill_all()
            time.sleep(FIRST_PAUSE_S)
            self.reap(now)
        self._journal.flush()

    # What the worker asks for

    def launch(self, order: dict[str, Any], now: float) -> None:
        name = order["attempt"]
        if not is_attempt_name(name):
            raise ValueError(f"not an attempt id: {name!r}")
        if name in self._live or name in self._waiting or name in self._journal.ends:
            return
        if (end := self._forgotten.pop(name, None)) is not None:
            self._record(name, end)
        elif after := {other for other in order.get("after", ()) if other in self._live or other in self._waiting}:
            self._waiting[name] = (order, after)
        else:
            self._launch(order, now)

    def start_ready(self, now: float) -> None:
        """Start what waited for ends that have come by now. A start takes its time: tell these ends first."""
        while ready := [name for name, (_, after) in self._waiting.items() if not after]:
            for name in ready:
                order, _ = self._waiting.pop(name)
                self._launch(order, now)

    def stop(self, name: str, reason: str, grace_s: float, now: float) -> None:
        if self.call_back(name, reason):
            return
        attempt = self._live.get(name)
        if attempt is None:
            return
        if attempt.phase == RUNNING:
            attempt.stopped = reason
            if not attempt.stop_argv or grace_s <= 0 or not self._tell_to_stop(attempt, now, grace_s):
                self._ask(attempt, now, grace_s)
        else:
            attempt.kill_at = min(attempt.kill_at, now + grace_s)
            self._due(attempt, min(attempt.due_at, attempt.kill_at))

    def call_back(self, name: str, reason: str) -> bool:
        """False: it does not wait. Whoever comes after it waits for what it waited for."""
        if name not in self._waiting:
            return False
        order, its = self._waiting.pop(name)
        for _, after in self._waiting.values():
            if name in after:
                after |= its
        never_started = Attempt(name, order["task_id"], 0.0, 0.0)
        never_started.exit_code, never_started.stopped = 128 + signal.SIGTERM, reason
        self._finish(never_started)
        return True

    def stop_all(self, reason: str, now: float) -> None:
        for name in list(self._waiting):
            self.stop(name, reason, 0.0, now)
        for attempt in list(self._live.values()):
            self.stop(attempt.id, reason, attempt.grace_s, now)

    def renew(self, age_s: float, now: float) -> None:
        """Contact with the hub, that long ago: what runs on a lease may go on."""
        self._contact_at = max(self._contact_at, now - age_s)
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
            self._folders.release(name, end["started_at"])
            self._forgotten[name] = {**end, "result": ""}  # it may be large, and whoever forgets an end has it
            if len(self._forgotten) > MAX_FORGOTTEN:
                del self._forgotten[next(iter(self._forgotten))]

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

    @property
    def answers_fd(self) -> int:
        """Readable when there is something to `hear`; -1 if there never is."""
        return self._pool.fileno()

    def hear(self, now: float) -> None:
        """Some interpreter has answered: its call is over, and so is the attempt, unless that left something behind."""
        for interpreter, answer in self._pool.answers():
            attempt = self._live.get(interpreter.attempt)
            if attempt is None or answer is None:
                self._distrust(interpreter, attempt, now)
                continue
            attempt.exit_code, attempt.result = answer
            if attempt.phase == ASKED:
                attempt.phase, attempt.stopped = RUNNING, ""
            if attempt.phase != RUNNING:
                self._pool.hang_up(interpreter)  # it has been sent SIGTERM, or is about to be killed: no use any more
            elif self._left_nothing(interpreter, attempt):
                self._finish(attempt)
                self._pool.put_back(interpreter, now)
                self.wake_at = min(self.wake_at, self._pool.wake_at)
            else:
                self._tree.hand(interpreter.pid, attempt.id)
                self._pool.hang_up(interpreter)
                self._ask(attempt, now, min(attempt.grace_s, STRAGGLER_GRACE_S))

    def _left_nothing(self, interpreter: Interpreter, attempt: Attempt) -> bool:
        # In this order: what leaves the interpreter comes to us, and nothing ever goes the other way.
        self._tree.hand(interpreter.pid, interpreter.name)
        return not self._table.has_children(interpreter.pid) and not self._tree.with_stragglers((attempt.id,))

    def _distrust(self, interpreter: Interpreter, attempt: Attempt | None, now: float) -> None:
        """It said what it should not, or when it should not: it goes, and so does what runs in it."""
        self._pool.hang_up(interpreter)
        if attempt is None:
            self._pool.kill(interpreter)
        else:
            attempt.phase, attempt.kill_at = KILLING, now
            self._due(attempt, now)

    def tick(self, now: float) -> None:
        """Take the steps that are due: deadlines, ends of graces, rounds of killing. Many at once: one walk for all."""
        due = [attempt for attempt in self._live.values() if attempt.due_at <= now]
        for attempt in due:
            if attempt.phase == RUNNING:
                attempt.stopped = "max_runtime" if attempt.deadline_at <= now else "lost contact"
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
        self.wake_at = min((attempt.due_at for attempt in self._live.values()), default=NEVER)
        self.wake_at = min(self.wake_at, self._pool.wake_at, self._peaks.wake_at)

    def recover(self, now: float) -> None:
        """Take over what an earlier supervisor of this folder left: its ends, and its processes, which are killed.

        Nobody can be told how those processes would have ended: they were never children of this one.
        """
        for name, task in self._journal.starts.items():
            same_boot = task.get("boot") == self._table.boot
            attempt = Attempt(name, task.get("task_id", ""), task.get("started_at", 0.0), 0.0)
            pid, start = (task.get("pid", 0), task.get("ticks", 0)) if same_boot else (0, 0)
            self._tree.inherit(name, pid, start)
            attempt.error = "ended while nobody watched"
            attempt.exit_code = UNKNOWN_EXIT
            attempt.phase = KILLING
            self._live[name] = attempt
            self._inherited.add(name)
            self._due(attempt, now)

    # The steps

    def _launch(self, order: dict[str, Any], now: float) -> None:
        name = order["attempt"]
        attempt = Attempt(name, order["task_id"], time.time(), order["grace_s"])
        try:
            self._start(attempt, order, now)
        except StartFailed as error:
            attempt.error, attempt.exit_code = str(error), error.exit_code
            self._finish(attempt)
        except OSError as error:
            attempt.error, attempt.exit_code = f"the task's folder could not be made: {error}", NOT_EXECUTABLE
            self._finish(attempt)
        else:
            self._live[name] = attempt
            if order.get("stop"):
                attempt.stop_argv, attempt.env = order["stop"], order["env"]
            if order["deadline_s"] > 0:
                attempt.deadline_at = now + order["deadline_s"]
            if order.get("lease_s", 0) > 0:
                attempt.lease_s = order["lease_s"]
                self._contact_at = max(self._contact_at, now)  # whoever ordered it was in contact
            self._due(attempt, self._ends_at(attempt))
            self._peaks.begin(name, now)
            self.wake_at = min(self.wake_at, self._peaks.wake_at)

    def _start(self, attempt: Attempt, order: dict[str, Any], now: float) -> None:
        name, argv, env = attempt.id, order["argv"], order["env"]
        is_warm = bool(order.get("warm")) and self._pool.usable
        self._journal.starting(name, attempt.task_id, attempt.started_at, flush=not is_warm)
        if not self._folders.make(name):
            raise StartFailed(NOT_EXECUTABLE, "this attempt has run before and its end is no longer known")
        folder = self._folders.path(name)
        # The spawn cannot change directory, so this process does: it has one thread, and all its other paths are full.
        if is_warm:
            self._lend(attempt, order, folder, now)
            return
        os.chdir(f"{folder}/{WORK}")
        program = self._programs.find(argv[0] if argv else "", env.get("PATH", os.defpath), now)
        pid = spawn(program, argv, env, f"{folder}/{LOG}")
        ticks = self._table.clock()
        self._tree.add(name, pid, ticks)
        self._journal.started(name, pid, ticks)

    def _lend(self, attempt: Attempt, order: dict[str, Any], folder: str, now: float) -> None:
        """Give the order to an interpreter of its kind: an idle one, or else a new one."""
        taken = False
        while not taken:
            interpreter = self._pool.take_idle(order["warm"]) or self._new_interpreter(attempt, order, folder, now)
            # Whose it is stands in the journal before it begins: it shows nowhere else.
            self._journal.started(attempt.id, interpreter.pid, interpreter.ticks)
            self._journal.flush()
            self._tree.lend(interpreter.name, attempt.id, interpreter.pid, self._table.clock())
            taken = self._pool.lend(interpreter, order, f"{folder}/{LOG}", f"{folder}/{WORK}")
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

    def _ask(self, attempt: Attempt, now: float, grace_s: float) -> None:
        """To be sent SIGTERM by the `tick` of this same turn."""
        attempt.phase, attempt.kill_at = ASKED, now + grace_s
        self._due(attempt, now)

    def _tell_to_stop(self, attempt: Attempt, now: float, grace_s: float) -> bool:
        """By its own command, which is a process of the attempt's like any other. False: it cannot be started."""
        folder = self._folders.path(attempt.id)
        argv = [word.replace(PID, str(self._tree.main(attempt.id))) for word in attempt.stop_argv]
        try:
            os.chdir(f"{folder}/{WORK}")
            program = self._programs.find(argv[0], attempt.env.get("PATH", os.defpath), now)
            spawn(program, argv, attempt.env, f"{folder}/{LOG}")
        except (StartFailed, OSError) as error:
            _add_line(f"{folder}/{LOG}", f"the command that stops it could not be started: {error}")
            return False
        attempt.phase, attempt.kill_at = TOLD, now + 2 * grace_s
        self._due(attempt, now + grace_s)
        return True

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
            "ran_s": time.monotonic() - attempt.began if attempt.id not in self._inherited else 0.0,
            "peak_memory_mib": self._peaks.take(attempt.id),
        }
        self._live.pop(attempt.id, None)
        self._closing.pop(attempt.id, None)
        self._inherited.discard(attempt.id)
        self._tree.remove(attempt.id)
        for _, after in self._waiting.values():
            after.discard(attempt.id)
        if (interpreter := self._pool.over(attempt.id)) is not None:
            self._journal.dropped(interpreter.name)
        if attempt.id.startswith(NAMES):
            self._journal.dropped(attempt.id)  # an interpreter that a killed supervisor left: nobody asks for its end
        else:
            self._record(attempt.id, end)

    def _record(self, name: str, end: dict[str, Any]) -> None:
        text = (
            f'{{"attempt":"{name}","task_id":{quote(end["task_id"])},"exit_code":{end["exit_code"]},'
            f'"error":{quote(end["error"])},"stopped":{quote(end["stopped"])},'
            f'"started_at":{end["started_at"]!r},"finished_at":{end["finished_at"]!r},'
            f'"ran_s":{end.get("ran_s", 0.0):.3f},"peak_memory_mib":{end.get("peak_memory_mib", 0)}'
            + (f',"result":"{end["result"]}"}}' if end.get("result") else "}")
        )
        self._journal.ended(name, end, text)
        self._news.append(text)

    def _due(self, attempt: Attempt, at: float) -> None:
        attempt.due_at = at
        self.wake_at = min(self.wake_at, at)


def _add_line(log: str, text: str) -> None:
    with open(log, "ab") as file:
        file.write(f"{text}\n".encode(errors="replace"))
