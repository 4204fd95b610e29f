"""One loop between a batch system and all nodes of it: what is to be submitted, ended and looked at goes together."""

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

from ostler.bridge import script
from ostler.bridge.base import BatchSystem, Node, Refusal, Sight, Signal, Submission, Unanswered
from ostler.bridge.runtime import ATTEMPTS, BatchRuntime
from ostler.runtime.clock import also_asleep
from ostler.runtime.process import Replaced

WORKERS, OWNER = "workers", "owner"
GATHER_S = 0.05
"""What comes within this goes to the batch system together."""
LOOK_S = 1.0
SLOWER, SLOWEST = 1.25, 10.0
"""The pause between two looks grows by the first while nothing happens, up to so many times what it was."""
NODES_EVERY, ADOPT_EVERY = 10.0, 60.0
"""So many looks apart, about."""
AGAIN_S = 15.0

_log = logging.getLogger("ostler.bridge")


class Cluster:
    """`offered` is told what the nodes have, now and then."""

    def __init__(
        self,
        system: BatchSystem,
        folder: Path,
        *,
        offered: Callable[[list[Node]], Awaitable[None]] | None = None,
        look_s: float = LOOK_S,
        patience_s: float = math.inf,
    ) -> None:
        self.system = system
        self._folder = folder
        self._offered = offered
        self._look_s = look_s
        self._patience_s = patience_s
        self._runtimes: dict[str, BatchRuntime] = {}
        self._woken = asyncio.Event()
        self._me = secrets.token_hex(8)
        self._adopted_at = -math.inf
        self._nodes: list[Node] = []
        self._nodes_at = -math.inf
        self._nodes_stale = False
        self._answers = True

    def runtime(self, node: str) -> BatchRuntime:
        """That of this node; its files are in a folder of its own."""
        made = BatchRuntime(self.folder(node), node, self._woken.set, self.system.name, self._patience_s)
        self._runtimes[node] = made
        return made

    def folder(self, node: str) -> Path:
        return self._folder / WORKERS / node

    def take(self, nodes: list[Node] | None = None) -> None:
        """From now on this process speaks for what is in the folder, and no other; these nodes are known."""
        self._nodes = nodes or []
        (self._folder / WORKERS).mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / OWNER).write_text(self._me)

    async def run(self) -> None:
        """For ever, or until another process has taken the folder."""
        pause_s, look_at = self._look_s, 0.0
        while True:
            now = also_asleep()
            due = min((runtime.look_at_clocks(now) for runtime in self._runtimes.values()), default=math.inf)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), max(0.0, min(due, look_at) - now))
                await asyncio.sleep(GATHER_S)
            if await asyncio.to_thread(self._is_taken):
                return self._give_up()
            self._woken.clear()
            try:
                if await self._carry(also_asleep()):
                    pause_s = self._look_s
                    look_at = min(look_at, also_asleep() + min(pause_s, self.system.hurry_s))
                if also_asleep() >= look_at:
                    changed = await self._look(also_asleep())
                    pause_s = self._look_s if changed else min(self._look_s * SLOWEST, pause_s * SLOWER)
                    look_at = also_asleep() + min(pause_s, self.system.hurry_s)
                self._told(None)
            except (Unanswered, OSError) as error:  # a full disk, or a command that is being replaced, passes too
                self._told(error)
                pause_s = min(max(LOOK_S, self._look_s) * SLOWEST, pause_s * 2)
                await asyncio.sleep(pause_s)

    def _told(self, error: Exception | None) -> None:
        """Once when it begins, and once when it is over."""
        if error is not None and self._answers:
            _log.warning("%s does not answer, and is asked again until it does: %s", self.system.name, error)
        elif error is None and not self._answers:
            _log.info("%s answers again", self.system.name)
        self._answers = error is None

    def _is_taken(self) -> bool:
        try:
            return (self._folder / OWNER).read_text() != self._me
        except OSError:
            return False

    def _give_up(self) -> None:
        for runtime in self._runtimes.values():
            runtime.replaced(Replaced(f"another process uses the bridge's folder {self._folder}"))

    async def _carry(self, now: float) -> bool:
        """Signals first: they may be what others wait for."""
        for runtime in self._runtimes.values():
            runtime.look_at_clocks(now)
        late = [await runtime.lose_patience(now) for runtime in self._runtimes.values()]
        if any(late) and self._offered is not None:
            await self._offered(self._nodes)  # before the end of what was late, or the same node would get it again
        signalled = await self._signal(now)
        unsure = any(live.unsure for one in self._runtimes.values() for live in one.live.values())
        missing = any(runtime.is_missing() for runtime in self._runtimes.values())
        if unsure or missing or now >= self._adopted_at + ADOPT_EVERY * self._look_s:
            await self._adopt(now)
        return await self._submit(now) or signalled

    async def _signal(self, now: float) -> bool:
        wanted: dict[Signal, list[tuple[BatchRuntime, str]]] = {}
        for runtime in self._runtimes.values():
            for attempt, signal in (await runtime.to_signal(now)).items():
                wanted.setdefault(signal, []).append((runtime, attempt))
        for signal, attempts in wanted.items():
            jobs = [runtime.live[attempt].record.job for runtime, attempt in attempts if attempt in runtime.live]
            await self.system.stop(jobs, signal)
            for runtime, attempt in attempts:
                runtime.signalled(attempt, signal, now)
        return bool(wanted)

    async def _submit(self, now: float) -> bool:
        jobs: list[tuple[BatchRuntime, Submission]] = []
        for runtime in self._runtimes.values():
            jobs += [(runtime, job) for job in runtime.to_submit(now)]
        if not jobs:
            return False
        answers: dict[str, str | Refusal] = {}
        try:
            answers = await self.system.submit([job for _, job in jobs])
        finally:
            for runtime, job in jobs:
                await runtime.submitted(job.attempt, answers.get(job.attempt), now, AGAIN_S)
        return True

    async def _adopt(self, now: float) -> None:
        self._adopted_at = now
        jobs = await self.system.adopt()
        for runtime in self._runtimes.values():
            await runtime.adopted(jobs)
        strays = await asyncio.to_thread(self._strays, jobs)
        if strays:
            _log.warning(
                "%d jobs in %s belong to nothing that is known here: they are ended", len(strays), self.system.name
            )
            await self.system.stop(strays, "")

    def _strays(self, jobs: dict[str, dict[str, Sight]]) -> list[str]:
        """Of attempts that have no record any more, on any node."""
        found = []
        places = [path / ATTEMPTS for path in (self._folder / WORKERS).iterdir()]
        for attempt, sights in jobs.items():
            going = [job for job, sight in sights.items() if sight.phase != "over"]
            if going and not any((place / attempt / script.JOB / script.RECORD).exists() for place in places):
                found += going
        return found

    async def _look(self, now: float) -> bool:
        asked = {job for runtime in self._runtimes.values() for job in runtime.looked_for()}
        changed = False
        if asked:
            sights = await self.system.look(asked)
            if any(sight.fate == "lost" for sight in sights.values()):
                await self._look_at_nodes(now)  # before the end of what was lost, or the same node would get it again
            for runtime in self._runtimes.values():
                changed |= await runtime.saw(sights, asked, now)
        self._nodes_stale |= changed
        if now >= self._nodes_at + (1.0 if self._nodes_stale else NODES_EVERY) * self._look_s:
            await self._look_at_nodes(now)
        return changed

    async def _look_at_nodes(self, now: float) -> None:
        if self._offered is not None:
            self._nodes_at, self._nodes_stale = now, False
            self._nodes = await self.system.nodes()
            await self._offered(self._nodes)
