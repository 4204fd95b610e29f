"""Tasks as jobs of a batch system: one node's part of it, as a runtime of a worker.

Nothing is asked of the batch system here: what should be is written down, `Cluster` carries it there for all nodes at
once, and what it then sees comes back as `saw`.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from ostler.bridge import fate
from ostler.bridge.base import Ask, Node, Refusal, Sight, Signal, Submission
from ostler.bridge.fate import CALLED_BACK, OUT_OF_TIME, TERMINATED, Found
from ostler.bridge.record import Folder, Record, check_files
from ostler.bridge.script import LOST_CONTACT
from ostler.runtime.base import Ended, Held, Launch
from ostler.runtime.clock import also_asleep
from ostler.runtime.prune import prune

ATTEMPTS = "attempts"
LIMIT_SLACK_S = 60.0
"""Later than the deadline that is kept from here, the batch system's own limit: for when nobody is here."""
SETTLE_S = 15.0
"""How long what a node has written may take to be seen from here."""
CONTACT_EVERY_S = 5.0
SHUTDOWN = "shutdown"
LEAVING_S = 60.0
MOST_CHARACTERS = 200


class Turn(msgspec.Struct, frozen=True):
    """News of an attempt that is in the batch system's queue: what it waits for; "": its turn has come."""

    attempt: str
    waits_for: str


class Live(msgspec.Struct, kw_only=True):
    """An attempt whose end has not been told."""

    record: Record
    running: bool = False
    since: float = 0.0
    """When it came, and once it runs, when that was seen."""
    waits_for: str = ""
    unsure: bool = False
    """It may have been submitted: the batch system is asked before it is submitted again."""
    not_before: float = 0.0
    signalled: Signal | None = None
    signal_again: float = math.inf
    over_since: float = 0.0


class BatchRuntime:
    """What one node holds. `wake` is called when the batch system is to be asked for something."""

    def __init__(
        self, folder: Path, node: str, wake: Callable[[], None], system: str, patience_s: float = math.inf
    ) -> None:
        self.node = Node(name=node)
        self._files = Folder(folder / ATTEMPTS)
        self._wake = wake
        self._system = system
        self._patience_s = patience_s
        self.live: dict[str, Live] = {}
        self._ended: set[str] = set()
        self._ends: asyncio.Queue[Ended | Exception | None] = asyncio.Queue()
        self._turns: asyncio.Queue[Turn | None] = asyncio.Queue()
        self._contact: tuple[float, float] | None = None
        """When the hub was last in contact, by the clock that counts and by the clock on the wall."""
        self._contact_written = 0.0
        self._quiet = asyncio.Event()
        self.resting = ""
        self._rests_until = 0.0

    # What a worker asks for

    async def open(self) -> list[Held]:
        self._quiet.set()
        found = await asyncio.to_thread(self._files.records)
        return [await asyncio.to_thread(self._take_back, attempt, record) for attempt, record in found.items()]

    def _take_back(self, attempt: str, record: Record) -> Held:
        held = Held(attempt=attempt, task_id=record.task_id, started_at=0.0, checkpoint=record.checkpoint)
        if record.ended is not None:
            self._ended.add(attempt)
            held.ended = record.ended
            return held
        record.fenced = record.fenced or self._files.is_fenced(attempt)
        if record.fenced and not record.stopped:
            record.stopped = CALLED_BACK  # by a process that was gone before it had written that down
        held.started_at = 0.0 if record.fenced else self._files.began_at(attempt)
        held.after = record.after
        live = Live(record=record, running=bool(held.started_at), since=also_asleep(), unsure=not record.job)
        if held.started_at:
            live.since -= max(0.0, time.time() - held.started_at)
        if record.lease_s and (contact_at := self._files.contact(attempt)):
            self._heard(max(0.0, time.time() - contact_at))
        self._enter(attempt, live)
        return held

    def _heard(self, age_s: float) -> tuple[float, float]:
        """Of the hub, so long ago; when that was last."""
        at = (also_asleep() - age_s, time.time() - age_s)
        if self._contact is None or at[0] > self._contact[0]:
            self._contact = at
        return self._contact

    def prepare(self, launch: Launch) -> None:
        """Where and when it begins is not ours to say."""

    async def launch(self, launch: Launch) -> None:
        attempt = launch.attempt
        self.folder(attempt)
        check_files(launch.files)
        if attempt in self.live or attempt in self._ended:
            return
        record = Record(
            task_id=launch.task_id,
            ask=self._ask(launch),
            call=bool(launch.warm),
            cores=launch.cores,
            asked_mib=launch.asked_mib,
            devices=launch.devices,
            deadline_s=launch.deadline_s,
            lease_s=launch.lease_s,
            grace_s=launch.grace_s,
            after=[name for name in launch.after if name in self.live],
            checkpoint=launch.env.get("OSTLER_CHECKPOINT", ""),
        )
        live = Live(record=record, since=also_asleep(), not_before=math.inf)
        self._enter(attempt, live)
        contact_at = self._contact[1] if self._contact is not None else 0.0
        try:
            await asyncio.to_thread(self._files.write, launch, record, contact_at)
        except BaseException:
            self._leave(attempt)  # there is no room for it, and whoever asked is told
            raise
        live.not_before = 0.0
        if attempt in self.live:
            self._look_at_lease(attempt)
            self._wake()
        elif attempt not in self._ended:  # it was stopped meanwhile, and even forgotten
            await asyncio.to_thread(self._files.forget, attempt)

    def _ask(self, launch: Launch) -> Ask:
        limit_s = launch.deadline_s + launch.grace_s + LIMIT_SLACK_S if launch.deadline_s else 0.0
        most_s = self.node.limit_s
        return Ask(
            node=self.node.name,
            cores=max(1, math.ceil(launch.cores)),
            memory_mib=launch.asked_mib,
            gpus=len(launch.devices),
            gpu_type=self.node.gpu_type,
            limit_s=min(limit_s or most_s, most_s) if most_s else limit_s,
        )

    def _enter(self, attempt: str, live: Live) -> None:
        self.live[attempt] = live
        self._quiet.clear()

    def _leave(self, attempt: str) -> Live | None:
        live = self.live.pop(attempt, None)
        if not self.live:
            self._quiet.set()
        return live

    async def stop(self, attempt: str, reason: str, grace_s: float) -> None:
        live = self.live.get(attempt)
        if live is None:
            return
        live.record.grace_s = grace_s
        if not live.record.stopped:
            live.record.stopped = reason
            await self._save(attempt)
        elif live.signalled == "TERM":
            live.signal_again = min(live.signal_again, also_asleep() + grace_s)
        await self._fence(attempt)
        self._wake()

    async def call_back(self, attempt: str, reason: str) -> None:
        live = self.live.get(attempt)
        if live is None or live.running or live.record.stopped:
            return
        if await asyncio.to_thread(self._files.fence, attempt) and not live.record.stopped:
            live.record.stopped, live.record.fenced = reason, True
            await self._save(attempt)
            self._end_unsent(attempt)
            self._wake()

    async def _fence(self, attempt: str) -> None:
        """What is told to end and has not begun never will, whoever begins it."""
        live = self.live.get(attempt)
        if live is None or live.record.fenced or live.running:
            return
        if await asyncio.to_thread(self._files.fence, attempt) and attempt in self.live:
            live.record.fenced = True
            await self._save(attempt)
            self._end_unsent(attempt)

    def _end_unsent(self, attempt: str) -> None:
        """One that the batch system has never heard of is over at once."""
        live = self.live.get(attempt)
        if live is not None and not live.record.job and not live.unsure:
            end = Ended(attempt=attempt, task_id=live.record.task_id, exit_code=TERMINATED, stopped=live.record.stopped)
            self._tell(attempt, end)

    async def renew(self, age_s: float) -> None:
        contact = self._heard(age_s)
        leased = [attempt for attempt, live in self.live.items() if live.record.lease_s]
        every_s = min([CONTACT_EVERY_S, *(self.live[attempt].record.lease_s / 4 for attempt in leased)])
        if leased and contact[0] - self._contact_written >= every_s:
            self._contact_written = contact[0]
            await asyncio.to_thread(self._files.write_contact, leased, contact[1])

    async def forget(self, attempt: str) -> None:
        if attempt in self.live:
            raise ValueError(f"attempt {attempt} has not ended, so it cannot be forgotten")
        if attempt in self._ended:
            self._ended.discard(attempt)
            await asyncio.to_thread(self._files.forget, attempt)

    def peaks(self) -> Mapping[str, int]:
        return {}

    def samples(self) -> Mapping[str, tuple[int, int]]:
        return {}

    async def ends(self) -> AsyncIterator[Ended]:
        while (end := await self._ends.get()) is not None:
            if isinstance(end, Exception):
                raise end
            yield end

    async def turns(self) -> AsyncIterator[Turn]:
        """Whenever an attempt that has not begun waits for something else, and when it begins."""
        while (turn := await self._turns.get()) is not None:
            yield turn

    def folder(self, attempt: str) -> Path:
        return self._files.path(attempt)

    def path(self, attempt: str) -> str:
        return str(self.folder(attempt))

    async def close(self, *, stop_tasks: bool) -> None:
        if stop_tasks:
            longest_s = max((live.record.grace_s for live in self.live.values()), default=0.0)
            for attempt, live in list(self.live.items()):
                await self.stop(attempt, SHUTDOWN, live.record.grace_s)
            with contextlib.suppress(TimeoutError):  # what is left then is taken back by the next start
                await asyncio.wait_for(self._quiet.wait(), longest_s + LEAVING_S)
        self._ends.put_nowait(None)
        self._turns.put_nowait(None)

    async def prune(self, *, keep_bytes: int, keep_age_s: float) -> int:
        """Bound what forgotten attempts take on the disk; how many bytes were freed."""
        return await asyncio.to_thread(prune, self._files.root, self._holds, keep_bytes, keep_age_s, time.time())

    def _holds(self, attempt: str) -> bool:
        return attempt in self.live or attempt in self._ended

    # What the cluster carries to the batch system

    def to_submit(self, now: float) -> list[Submission]:
        """Until there is an answer, nobody knows whether they have been."""
        found = []
        for attempt, live in self.live.items():
            record = live.record
            held_back = any(name in self.live for name in record.after)
            if record.job or record.stopped or held_back or live.unsure or live.not_before > now:
                continue
            live.unsure = True
            path, call = self._files.keep_script(attempt), record.call
            found.append(Submission(attempt=attempt, task_id=record.task_id, script=path, ask=record.ask, call=call))
        return found

    async def submitted(self, attempt: str, answer: str | Refusal | None, now: float, pause_s: float) -> None:
        """None: there was no answer."""
        live = self.live.get(attempt)
        if live is None:
            return
        live.unsure = answer is None
        if isinstance(answer, str):
            live.record.job = answer
            await self._save(attempt)
        elif answer is not None and answer.lasting:
            error = f"{self._system} did not take it: {answer.text}"
            self._tell(attempt, Ended(attempt=attempt, task_id="", exit_code=fate.KILLED, error=error))
        else:
            live.not_before = now + pause_s
            self._waits(attempt, f"{self._system} to take it: {answer.text}" if answer else f"{self._system} to answer")

    async def adopted(self, jobs: Mapping[str, Mapping[str, Sight]]) -> None:
        """What the batch system knows by its attempt's name: nothing of what is not among it was ever submitted."""
        for attempt, live in list(self.live.items()):
            known = [job for job in jobs.get(attempt, ()) if job != live.record.job]
            begun = [job for job in known if jobs[attempt][job].phase == "running"]
            if begun and (live.over_since or not live.running):
                # An answer was late, and it is there twice: only one of them can have begun.
                live.record.job, live.over_since, live.signalled = begun[0], 0.0, None
                live.unsure = False
                await self._save(attempt)
            elif live.unsure:
                live.unsure = False
                live.record.job = (begun or known or [""])[0]
                await self._save(attempt)

    def look_at_clocks(self, now: float) -> float:
        """What is due by now happens; when the next is."""
        due = math.inf
        for attempt, live in list(self.live.items()):
            record = live.record
            if math.isinf(live.not_before):
                continue  # its files are being written
            if record.lease_s and not record.stopped:
                due = min(due, self._look_at_lease(attempt))
            if live.running and record.deadline_s and not record.stopped:
                due = min(due, live.since + record.deadline_s)
                if now >= live.since + record.deadline_s:
                    record.stopped = OUT_OF_TIME
            if self._is_in_line(live):
                due = min(due, live.since + self._patience_s)
            is_to_hear = record.stopped and record.job and live.signalled is None
            due = min(due, now if is_to_hear else live.signal_again)
        if self.resting and now >= self._rests_until:
            self.resting = ""
        return due

    def _is_in_line(self, live: Live) -> bool:
        return not live.running and not live.record.stopped and not live.record.after

    async def lose_patience(self, now: float) -> bool:
        """What the batch system has not begun for too long is handed back, and nothing is taken for as long again."""
        late = [
            name for name, live in self.live.items() if self._is_in_line(live) and now >= live.since + self._patience_s
        ]
        for attempt in late:
            live, rested = self.live.get(attempt), self.resting
            if live is None:
                continue  # it ended while another was handed back
            said = f"{self._system} did not start it within {self._patience_s:.0f} s"
            self.resting = f"{said}: {live.waits_for}"[:MOST_CHARACTERS]
            await self.call_back(attempt, f"{CALLED_BACK}: {self.resting}")
            if live.record.fenced:
                self._rests_until = now + self._patience_s
            else:  # it has begun, which the next look will show
                self.resting, live.since = rested, now
        return bool(late)

    def _look_at_lease(self, attempt: str) -> float:
        live = self.live[attempt]
        lease_s = live.record.lease_s
        at = self._contact[0] + lease_s if self._contact is not None else -math.inf
        if lease_s and not live.record.stopped and also_asleep() >= at:
            live.record.stopped = LOST_CONTACT
            if not live.record.job and not live.unsure and self._files.fence(attempt):
                live.record.fenced = True
                self._end_unsent(attempt)
        return at if lease_s else math.inf

    async def to_signal(self, now: float) -> dict[str, Signal]:
        """By attempt: those that were told to end and have not heard of it, or did not obey in time."""
        found: dict[str, Signal] = {}
        for attempt, live in list(self.live.items()):
            if not live.record.stopped or math.isinf(live.not_before):
                continue
            await self._fence(attempt)
            if attempt in self.live and not live.record.job and not live.unsure:
                await self._over(attempt, None, now)  # the batch system knows nothing of it: not yet, or no more
            if not live.record.job or attempt not in self.live:
                continue
            if live.signalled is None:
                await self._save(attempt)
                # Of one that waits, or has just begun, the batch system is told to drop it, either way.
                found[attempt] = "" if not live.running else "TERM" if live.record.grace_s > 0 else "KILL"
            elif now >= live.signal_again:
                found[attempt] = "KILL" if live.signalled == "TERM" else ""
        return found

    def signalled(self, attempt: str, signal: Signal, now: float) -> None:
        live = self.live.get(attempt)
        if live is not None:
            live.signalled = signal
            live.signal_again = now + (live.record.grace_s if signal == "TERM" else SETTLE_S)

    def looked_for(self) -> list[str]:
        return [live.record.job for live in self.live.values() if live.record.job]

    async def saw(self, sights: Mapping[str, Sight], asked: Iterable[str], now: float) -> bool:
        """What has changed since the last look is told. `asked` are the jobs that were asked about."""
        changed = False
        known = set(asked)
        for attempt, live in list(self.live.items()):
            job = live.record.job
            if job not in known:
                continue
            sight = sights.get(job)
            if sight is None or sight.phase == "over":
                changed |= await self._over(attempt, sight, now)
            elif sight.phase == "running":
                live.over_since = 0.0
                if not live.running:
                    live.running, live.since, changed = True, now, True
                    self._turns.put_nowait(Turn(attempt, ""))
            else:
                changed |= self._waits(attempt, f"its turn in {self._system} (job {job}: {sight.reason or 'queued'})")
        return changed

    def _waits(self, attempt: str, waits_for: str) -> bool:
        live = self.live.get(attempt)
        waits_for = waits_for[:MOST_CHARACTERS]
        if live is None or waits_for == live.waits_for:
            return False
        live.waits_for = waits_for
        self._turns.put_nowait(Turn(attempt, waits_for))
        return True

    async def _over(self, attempt: str, sight: Sight | None, now: float) -> bool:
        live = self.live.get(attempt)
        if live is None:
            return True  # it ended while another was looked at
        found = await asyncio.to_thread(self._found, attempt, live.record)
        live.over_since = live.over_since or now
        # What has begun and was never seen to run may run as another job, which the next look at all of them shows.
        is_elsewhere = found.began and found.exit is None and not live.running
        is_settled = not is_elsewhere and fate.is_settled(live.record, sight, found)
        if not is_settled and now < live.over_since + SETTLE_S:
            return True  # it is looked at again soon
        end, said = fate.conclude(attempt, live.record, sight, found, self._system)
        if said and attempt in self.live:
            await asyncio.to_thread(self._files.say, attempt, said)
        self._tell(attempt, end)
        return True

    def _found(self, attempt: str, record: Record) -> Found:
        began = not record.fenced and bool(self._files.began_at(attempt))
        return Found(began=began, exit=self._files.exit(attempt), stopped=self._files.stopped(attempt))

    def is_missing(self) -> bool:
        """Whether something is over that has left nothing: another job of its attempt may be the one that began."""
        return any(live.over_since for live in self.live.values())

    def _tell(self, attempt: str, end: Ended) -> None:
        """Once: whoever comes second, because a stop and a look came to the same end, tells nothing."""
        live = self._leave(attempt)
        if live is None:
            return
        end.task_id, end.finished_at = live.record.task_id, time.time()
        live.record.ended = end
        self._files.fence(attempt)
        self._files.save(attempt, live.record)
        self._ended.add(attempt)
        self._pass_on(attempt, live)
        self._ends.put_nowait(end)
        self._wake()

    def _pass_on(self, attempt: str, gone: Live) -> None:
        """Whoever waited for it begins; or, if it never began, waits for what it waited for."""
        instead = [name for name in gone.record.after if name in self.live and gone.record.fenced]
        for name, live in self.live.items():
            if attempt in live.record.after:
                live.record.after = [*(one for one in live.record.after if one != attempt), *instead]
                live.since = also_asleep()
                self._files.save(name, live.record)

    async def _save(self, attempt: str) -> None:
        live = self.live.get(attempt)
        if live is not None:
            await asyncio.to_thread(self._files.save, attempt, live.record)

    def replaced(self, error: Exception) -> None:
        """Another process has taken this folder: nothing more is told here."""
        self._ends.put_nowait(error)
