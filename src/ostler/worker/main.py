"""The worker program: everything is put together here, nothing is decided here."""

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import re
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ostler import config, logformat
from ostler.domain.errors import BadInput, NotAllowed, NotAuthenticated, OstlerError
from ostler.domain.hubs import Addresses
from ostler.runtime.base import Runtime
from ostler.runtime.identity import keep_to_itself
from ostler.runtime.link import SupervisorUnreachable
from ostler.runtime.process import Replaced
from ostler.runtime.supervisor import ATTEMPTS
from ostler.runtime.supervisors import Supervisors
from ostler.tls import PIN, Trust
from ostler.worker import disk, environment, offer
from ostler.worker.accounts import Accounts, WorkerSettings, prepare
from ostler.worker.accounts import load as load_settings
from ostler.worker.agent import Agent
from ostler.worker.api import HubApi
from ostler.worker.connection import Connection, TakenOver
from ostler.worker.credentials import Credentials, remember, told_of
from ostler.worker.events import DiskChanged, OfferChanged
from ostler.worker.gpus import Blind, Gpus, Probe
from ostler.worker.housekeeping import keep_house, make_room
from ostler.worker.launching import Place
from ostler.worker.snapshots import DEFAULT_BYTES
from ostler.worker.state import State
from ostler.worker.trimming import keep_short

FAILED, WRONG_USAGE, NOT_ALLOWED = 1, 2, 4
LOCK = "worker.lock"
SNAPSHOT_CACHE = "OSTLER_SNAPSHOT_CACHE_GB"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_log = logging.getLogger("ostler.worker")


class NameInUse(Exception):
    """Another worker on this machine has this name and this state folder: stop it, or give one of them another."""


@dataclass
class WorkerOptions:
    hub: str
    """http://host:port; of several, with commas between them"""
    token: str
    state_dir: Path
    name: str = field(default_factory=socket.gethostname)
    labels: dict[str, str] = field(default_factory=dict)
    slots: int | None = None
    """How many batch tasks at once; None: the offer's cores."""
    service_slots: int | None = None
    offer: Path | None = None
    """A TOML file in place of detection."""
    drain_seconds: float = 600.0
    log_format: str = logformat.TEXT
    token_file: Path | None = None
    """Where the token stood, if in a file."""
    trust: Trust = field(default_factory=Trust)
    """By what hubs are known."""


def run(options: WorkerOptions) -> int:
    """Be a worker until told to leave. Exit code: 0 drained, 1 failed, 2 wrong usage, 4 not allowed (any more)."""
    logformat.set_up("info", options.log_format, worker=options.name)
    keep_to_itself()
    try:
        folder = _folder(options)
        with locked(folder, options.name), asyncio.Runner(loop_factory=loop_factory()) as runner:
            gc.freeze()  # what was loaded stays: it is not to be walked again and again while tasks come and go
            runner.run(_work(options, folder))
    except (OstlerError, NameInUse, TakenOver, Replaced, SupervisorUnreachable) as error:
        print(f"ostler worker: {error}", file=sys.stderr)
        return exit_code(error)
    return 0


def exit_code(error: Exception) -> int:
    match error:
        case BadInput():
            return WRONG_USAGE
        case NotAllowed() | NotAuthenticated() | TakenOver():
            return NOT_ALLOWED  # nothing that starting it again would change
    return FAILED


def _folder(options: WorkerOptions) -> Path:
    if NAME.fullmatch(options.name) is None:
        raise BadInput(
            f"name: {options.name!r} cannot be a worker's name; it may have letters, digits, '.', '_' and '-'",
            [("name", "not a name")],
        )
    folder = options.state_dir / "workers" / options.name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def snapshot_bytes(given: str | None) -> int:
    try:
        size_gb = float(given) if given else DEFAULT_BYTES / 1024**3
        return int(max(0.0, size_gb) * 1024**3)
    except (ValueError, OverflowError):
        raise BadInput(
            f"{SNAPSHOT_CACHE}: {given!r} is not a number of GiB", [(SNAPSHOT_CACHE, "not a number of GiB")]
        ) from None


@contextlib.contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Held by this process, and by the kernel let go however it ends."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise NameInUse(f"a worker named {name} runs on this machine already (it holds {folder / LOCK})") from None
    else:
        yield
    finally:
        os.close(descriptor)


async def _work(options: WorkerOptions, folder: Path) -> None:
    source = offer.Source(folder=folder, file=options.offer, labels=options.labels)
    found = await asyncio.to_thread(source.look)
    for note in found.notes:
        _log.info("%s", note)
    slots = offer.default_slots(found.capabilities)
    state = State(
        worker_id=options.name,
        boot_id=uuid.uuid4().hex,
        capabilities=found.capabilities,
        batch_slots=slots if options.slots is None else options.slots,
        service_slots=slots if options.service_slots is None else options.service_slots,
    )
    settings = load_settings(config.config_file(None, options.state_dir))
    accounts, tasks = _accounts(settings, options)
    runtime = Supervisors(folder, attempts=tasks and tasks / ATTEMPTS, two=state.batch_slots > 1)
    place = Place(
        memory_limit=settings.memory_limit,
        accounts=accounts,
        tasks=tasks,
        hub=options.hub,
        folder=folder,
        environment=environment.inherited(os.environ, options.token) | known_by(options.trust),
        drain_s=options.drain_seconds,
        snapshot_bytes=snapshot_bytes(os.environ.get(SNAPSHOT_CACHE)),
    )
    async with speaking(options) as session:
        gpus = Gpus(Probe() if offer.is_nvidia(source, found.capabilities) else Blind())
        agent, connection = put_together(options, session, state, runtime, place, gpus)
        await agent.open()
        watch = offer.watch(source, found.capabilities, lambda changed: agent.post(OfferChanged(changed)))
        house = keep_house(runtime, place.reached, agent.tasks)
        short = keep_short(runtime.path, lambda: list(state.held))
        full = disk.watch([folder, tasks or folder], lambda: make_room(runtime), lambda f: agent.post(DiskChanged(f)))
        await _live(agent, runtime, connection.run(), watch, agent.watch_gpus(), house, short, full)


def speaking(options: WorkerOptions) -> aiohttp.ClientSession:
    secured = options.trust.context if "https:" in options.hub else True
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=secured))


def put_together(
    options: WorkerOptions, session: aiohttp.ClientSession, state: State, runtime: Runtime, place: Place, gpus: Gpus
) -> tuple[Agent, Connection]:
    """A worker of the fleet, whatever runs its tasks."""
    folder = place.folder
    credentials = Credentials(folder, options.hub, options.token, options.token_file)
    hubs = Addresses(options.hub)
    hubs.learn(told_of(folder, options.hub))
    agent = Agent(state, runtime, HubApi(session, hubs, credentials, options.trust), credentials, place, gpus)
    connection = Connection(
        session,
        hubs,
        credentials,
        on_open=agent.connected,
        on_message=agent.heard,
        on_lost=agent.disconnected,
        on_told=lambda: remember(folder, options.hub, hubs.known),
        trust=options.trust,
    )
    agent.speak_through(connection.send)
    return agent, connection


def _accounts(settings: WorkerSettings, options: WorkerOptions) -> tuple[Accounts | None, Path | None]:
    """As whom tasks run here, and where they find their things, where that is not as the worker itself."""
    if not settings.accounts:
        return None, None
    tasks = prepare(settings, options.state_dir, options.name, sys.executable)
    return Accounts(settings.accounts, tasks), tasks


def known_by(trust: Trust) -> dict[str, str]:
    """For tasks that talk to the hub: what this worker was told, which is no secret."""
    if not trust.given or trust.given.startswith(PIN):
        return {"OSTLER_CA": trust.given} if trust.given else {}
    return {"OSTLER_CA": str(Path(trust.given).expanduser().absolute())}


async def _live(agent: Agent, runtime: Runtime, *beside: Coroutine[Any, Any, None]) -> None:
    """Until the agent has left, or anything beside it fails."""
    stop_tasks = True
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, agent.told_to_leave)
    tasks = [asyncio.create_task(part) for part in (agent.run(), agent.watch_ends(), *beside)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except TakenOver:
        # The hub has given these tasks to whoever has the name now; nobody would ever take them back here.
        raise
    except BaseException:
        stop_tasks = False
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await agent.close()
        await runtime.close(stop_tasks=stop_tasks)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
