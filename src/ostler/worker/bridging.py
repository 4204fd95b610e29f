"""The bridge program: somebody else's cluster as workers of the fleet, one for each of its nodes, in one process.

A worker for each node, because what fits into a cluster need not fit into any node of it: so the hub's one ledger of
what is held stays true, and a gang gets a node for each member.
"""

import asyncio
import contextlib
import gc
import logging
import os
import re
import secrets
import signal
import sys
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from ostler import logformat
from ostler.bridge.base import BatchSystem, Node, Unanswered
from ostler.bridge.cluster import LOOK_S, Cluster
from ostler.bridge.offering import Offer, Terms
from ostler.bridge.runtime import BatchRuntime
from ostler.domain.errors import BadInput, OstlerError
from ostler.domain.worker import Capabilities
from ostler.runtime.identity import keep_to_itself
from ostler.runtime.process import Replaced
from ostler.worker import disk, environment
from ostler.worker.agent import Agent
from ostler.worker.connection import Connection, TakenOver
from ostler.worker.events import Begun, DiskChanged, InLine, OfferChanged
from ostler.worker.gpus import Blind, Gpus
from ostler.worker.housekeeping import keep_house, make_room
from ostler.worker.launching import Place
from ostler.worker.main import (
    NAME,
    SNAPSHOT_CACHE,
    NameInUse,
    WorkerOptions,
    exit_code,
    known_by,
    locked,
    loop_factory,
    put_together,
    snapshot_bytes,
    speaking,
)
from ostler.worker.state import State
from ostler.worker.trimming import keep_short

BRIDGES, ID = "bridges", "id"
NOT_IN_MEMORY = "nowhere"
LOOK_AFTER_S = 5.0
SAY_WITHIN_S = 0.5
GONE = "the node is not there any more"
_NOT_THEIRS = re.compile(r"SLURM_.*|SBATCH_.*|TMPDIR|(CUDA|HIP|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL")
"""Of the machine that the bridge is on: they mean nothing, or harm, on a node."""

_log = logging.getLogger("ostler.bridge")


@dataclass
class BridgeOptions:
    worker: WorkerOptions
    """Its name goes before that of each node."""
    system: Callable[[Path, str], BatchSystem]
    """Made when its folder is there, of that and of a name that no other bridge has."""
    folder: Path
    """On a file system that the nodes share, at the same path."""
    terms: Terms = field(default_factory=Terms)
    patience_s: float = 300.0
    leave_running: bool = False
    look_s: float = LOOK_S


def run(options: BridgeOptions) -> int:
    """Be a bridge until told to leave. Exit code: as a worker's."""
    logformat.set_up("info", options.worker.log_format, worker=options.worker.name)
    keep_to_itself()
    try:
        folder = bridge_folder(options)
        with locked(folder, options.worker.name), asyncio.Runner(loop_factory=loop_factory()) as runner:
            gc.freeze()
            runner.run(_bridge(options, folder))
    except (OstlerError, NameInUse, TakenOver, Replaced) as error:
        print(f"ostler bridge: {error}", file=sys.stderr)
        return exit_code(error)
    return 0


def bridge_folder(options: BridgeOptions) -> Path:
    name = options.worker.name
    if NAME.fullmatch(name) is None:
        told = f"name: {name!r} cannot begin a worker's name; it may have letters, digits, '.', '_' and '-'"
        raise BadInput(told, [("name", "not a name")])
    folder = options.folder.absolute() / BRIDGES / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def bridge_id(folder: Path) -> str:
    """The same for every process of this bridge, and nobody else's: what it submits is known by it."""
    file = folder / ID
    with contextlib.suppress(FileNotFoundError):
        return file.read_text().strip()
    new = file.with_name(f".{ID}.part")  # or one that was killed between the two would have none, and be anybody
    new.write_text(secrets.token_hex(4))
    new.replace(file)
    return file.read_text().strip()


async def _bridge(options: BridgeOptions, folder: Path) -> None:
    system = options.system(folder, bridge_id(folder))
    try:
        await system.open()
        nodes = await system.nodes()
    except Unanswered as error:
        raise OstlerError(f"{system.name} does not answer, so nothing is known of its nodes: {error}") from None
    if not nodes:
        raise BadInput(f"there are no nodes to offer; see what {system.name} says of them")
    async with speaking(options.worker) as session:
        bridge = Bridge(options, folder, system, session)
        await bridge.run(nodes)


class Member:
    """One node, as a worker."""

    def __init__(self, agent: Agent, connection: Connection, runtime: BatchRuntime, state: State, offer: Offer) -> None:
        self.agent = agent
        self.connection = connection
        self.runtime = runtime
        self.state = state
        self._offer = offer
        self._told: tuple[Capabilities, int] | None = None
        self._saying: asyncio.TimerHandle | None = None

    def see(self, node: Node) -> None:
        """Say what it offers, where that has changed."""
        live = list(self.runtime.live.values())
        begun = [one.record for one in live if one.running]
        told = self._offer.look(node, begun, [one.record for one in live], self.runtime.resting)
        if told != self._told:
            self._told = told
            self.agent.post(OfferChanged(*told))

    async def watch_turns(self) -> None:
        async for turn in self.runtime.turns():
            if not turn.waits_for:
                self.agent.post(Begun(attempt=turn.attempt))
                continue
            self.agent.post(InLine(attempt=turn.attempt, waits_for=turn.waits_for))
            if self._saying is None:  # one word to the hub for all that begin to wait for something now
                self._saying = asyncio.get_running_loop().call_later(SAY_WITHIN_S, self._say)

    def _say(self) -> None:
        self._saying = None
        if self._told is not None:
            self.agent.post(OfferChanged(*self._told))

    def parts(self, place: Place) -> list[Coroutine[Any, Any, None]]:
        """All that goes on beside its agent."""
        held = self.state.held
        return [
            self.agent.watch_ends(),
            self.watch_turns(),
            self.connection.run(),
            keep_house(self.runtime, place.reached, self.agent.tasks),
            keep_short(self.runtime.path, lambda: list(held)),
        ]


class Bridge:
    def __init__(
        self, options: BridgeOptions, folder: Path, system: BatchSystem, session: aiohttp.ClientSession
    ) -> None:
        self._options = options
        self._folder = folder
        self._session = session
        patience_s = float("inf") if options.terms.in_line else options.patience_s
        self._cluster = Cluster(system, folder, offered=self._see, look_s=options.look_s, patience_s=patience_s)
        self._members: dict[str, Member] = {}
        self._agents: set[asyncio.Task[None]] = set()
        self._beside: set[asyncio.Task[None]] = set()
        self._leaving = False

    async def run(self, nodes: list[Node]) -> None:
        """Until every node has been drained, or anything fails."""
        self._cluster.take(nodes)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._told_to_leave)
        stop_tasks = False
        try:
            await self._see(nodes)
            _log.info("%d nodes of %s are offered", len(nodes), self._cluster.system.name)
            self._beside |= {asyncio.create_task(self._cluster.run()), asyncio.create_task(self._watch_disk())}
            await self._until_drained()
            stop_tasks = not self._options.leave_running
        finally:
            await self._close(stop_tasks)

    async def _until_drained(self) -> None:
        while self._agents and not (self._leaving and self._options.leave_running):
            parts = self._agents | self._beside
            done, _ = await asyncio.wait(parts, timeout=LOOK_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
            self._agents -= done
            self._beside -= done

    def _told_to_leave(self) -> None:
        self._leaving = True
        if not self._options.leave_running:
            for member in self._members.values():
                member.agent.told_to_leave()

    async def _close(self, stop_tasks: bool) -> None:
        """The cluster's loop goes last: it is what ends the others' tasks."""
        members = list(self._members.values())
        for agent in self._agents:
            agent.cancel()
        await asyncio.gather(*self._agents, return_exceptions=True)
        await asyncio.gather(*(member.agent.close() for member in members))
        await asyncio.gather(*(member.runtime.close(stop_tasks=stop_tasks) for member in members))
        for part in self._beside:
            part.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)

    async def _see(self, nodes: list[Node]) -> None:
        """Those that are new join, those that are gone take nothing more."""
        for node in nodes:
            if node.name not in self._members and not self._leaving:
                await self._join(node)
        known = {node.name: node for node in nodes}
        for name, member in self._members.items():
            if name not in known and member.runtime.node.closed != GONE:
                _log.warning("%s: %s", name, GONE)
            member.runtime.node = known.get(name) or Node(name=name, closed=GONE)
            member.see(member.runtime.node)

    async def _join(self, node: Node) -> None:
        options = self._options
        name = f"{options.worker.name}-{node.name}"
        runtime = self._cluster.runtime(node.name)
        runtime.node = node
        state = State(
            worker_id=name,
            boot_id=uuid.uuid4().hex,
            capabilities=Capabilities(hostname=node.name),
            batch_slots=0,
            service_slots=0,
            queue=f"its turn in {self._cluster.system.name}",
        )
        place = self._place(self._cluster.folder(node.name))
        worker = replace(options.worker, name=name)
        agent, connection = put_together(worker, self._session, state, runtime, place, Gpus(Blind()))
        member = Member(agent, connection, runtime, state, Offer(options.terms))
        member.see(node)
        await agent.open()
        self._members[node.name] = member  # not before: where there is no room for it, it is tried again
        self._agents.add(asyncio.create_task(agent.run()))
        self._beside |= {asyncio.create_task(part) for part in member.parts(place)}

    def _place(self, folder: Path) -> Place:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        worker = self._options.worker
        return Place(
            hub=worker.hub,
            folder=folder,
            environment=for_nodes(environment.inherited(os.environ, worker.token)) | known_by(worker.trust),
            drain_s=worker.drain_seconds,
            snapshot_bytes=snapshot_bytes(os.environ.get(SNAPSHOT_CACHE)),
            secrets_in=folder / NOT_IN_MEMORY,
        )

    async def _watch_disk(self) -> None:
        def tell(full: bool) -> None:
            for member in self._members.values():
                member.agent.post(DiskChanged(full))

        async def free() -> None:
            for member in list(self._members.values()):
                await make_room(member.runtime)

        await disk.watch([self._folder], free, tell)


def for_nodes(inherited: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in inherited.items() if _NOT_THEIRS.fullmatch(name) is None}
