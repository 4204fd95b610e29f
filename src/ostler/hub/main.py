"""The hub: all wiring, no logic."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from prometheus_client.core import Metric
from starlette.types import ASGIApp

from ostler import __version__, config, logformat
from ostler.core.attempt import LEASES
from ostler.core.persist import restore
from ostler.domain.errors import BadInput, Deposed, LedgerError, NotYet, OstlerError
from ostler.domain.hosts import HostPolicy
from ostler.domain.origins import Origins
from ostler.domain.records import ManifestRecord
from ostler.gateway.control import KeySetup
from ostler.gateway.settings import GatewaySettings
from ostler.hub import collecting, connections, ledgers, stores, tls, traces
from ostler.hub.access import Access
from ostler.hub.api import table
from ostler.hub.api.artifacts import ArtifactsApi
from ostler.hub.api.enrol import EnrolApi
from ostler.hub.api.fleet import FleetApi
from ostler.hub.api.jobs import JobsApi
from ostler.hub.api.logs import LogsApi
from ostler.hub.api.manifest import ManifestApi, read_file
from ostler.hub.api.pull import PullApi
from ostler.hub.api.queue import QueueApi
from ostler.hub.api.sweeps import SweepsApi
from ostler.hub.api.templates import Templates
from ostler.hub.api.timeline import TimelineApi
from ostler.hub.api.whatif import WhatIfApi
from ostler.hub.api.why import WhyApi
from ostler.hub.artifacts import Artifacts
from ostler.hub.beside import Beside
from ostler.hub.blobs import Brought, Reach
from ostler.hub.cli_socket import CliSocket
from ostler.hub.clock import Clock, SystemClock
from ostler.hub.disk import Disk, DiskSettings
from ostler.hub.feed import Feed
from ostler.hub.foresight import Foresight
from ostler.hub.gateway.following import ConfigFile
from ostler.hub.gateway.gateway import Gateway
from ostler.hub.gateway.memory import SCOPE as GATEWAY_SCOPE
from ostler.hub.gateway.pages import ModelsApi
from ostler.hub.gateway.pages import Pages as GatewayPages
from ostler.hub.gateway.playground import Playground
from ostler.hub.guarding import guard
from ostler.hub.ids import new_attempt_id
from ostler.hub.leading import Alone, Seat, Shared
from ostler.hub.logs import Logs
from ostler.hub.looking import looking
from ostler.hub.loop import Loop
from ostler.hub.metrics import Metrics
from ostler.hub.notices import Notices
from ostler.hub.overview import Overview
from ostler.hub.perform import Performer
from ostler.hub.permissions import CALLERS
from ostler.hub.retention import Keeper
from ostler.hub.server import Server, address, listen, reached_from_afar, say_where
from ostler.hub.services import Services
from ostler.hub.sessions import Sessions
from ostler.hub.settings import Settings
from ostler.hub.settings import load as load_settings
from ostler.hub.standby import Standby
from ostler.hub.web.cookies import SCOPE as ENDED_SESSIONS
from ostler.hub.web.gate import Web, application
from ostler.hub.web.pages import Pages
from ostler.hub.web.session import SessionApi
from ostler.ledger.base import Ledger
from ostler.manifest import read as read_manifest
from ostler.runtime.identity import keep_to_itself
from ostler.store.bucket import is_asked
from ostler.store.shelves import Shelves
from ostler.tls import Wanted

KEEP_CHECKPOINTS_S = 7 * 86_400.0
"""Of tasks that have ended without success: an operator may yet want them to go on."""

STAND_BY = -1
"""No exit code: the hub leads no more, and starts again as one that stands by."""

_log = logging.getLogger("ostler.hub")


@dataclass
class HubOptions:
    host: str = "127.0.0.1"
    port: int = config.DEFAULT_PORT
    gateway_port: int = config.DEFAULT_GATEWAY_PORT
    """Where models are called; opened only where some are configured."""
    state_dir: Path = field(default_factory=config.state_dir)
    log_level: str = "info"
    log_format: str = logformat.TEXT
    config: Path | None = None
    """The settings file; None: that of the state folder, where there is one."""
    manifest: Path | None = None
    """The manifest that the queue follows from the start."""
    ledger: str = field(default="", repr=False)
    """The address of a PostgreSQL database, perhaps with a password; empty: a file in the state folder."""
    store: str = ""
    """Where logs, artifacts, snapshots and checkpoints are, for all hubs on one ledger: a folder, a bucket, or both
    with a comma between them; empty: in the state folder."""
    url: str = ""
    """Where workers, clients and other hubs reach this one; empty: where it listens."""
    tls: Wanted = field(default_factory=Wanted)


def run(options: HubOptions) -> int:
    """Until it is told to stop. The exit code: 0 stopped, 1 failed, 2 could not start."""
    logformat.set_up(options.log_level, options.log_format)
    given_port = options.port
    keep_to_itself()
    try:
        chosen = load_settings(config.config_file(options.config, options.state_dir))
        options.tls = tls.chosen(options.tls, chosen)
        tls.refuse_open_without(options.host, options.tls)
        options.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if options.manifest is not None:
            read_file(options.manifest)  # before anything is opened: a bad one must not start a hub
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(_serve(options, chosen))
            if is_asked():  # all is closed, and nobody waits for a store that does not answer
                if code == STAND_BY:
                    _start_again(given_port, options.port)
                logging.shutdown()
                os._exit(code)
        return _start_again(given_port, options.port) if code == STAND_BY else code
    except OstlerError as error:
        print(f"ostler hub: {error}", file=sys.stderr)
        return 1 if isinstance(error, LedgerError) else 2
    except OSError as error:
        print(f"ostler hub: {error.strerror or error} ({error.filename or options.state_dir})", file=sys.stderr)
        return 2


def _start_again(given_port: int, port: int) -> NoReturn:
    """A new process image on the same files: nothing of what this one believed is left, and starting is well tried."""
    same_port = [] if given_port else ["--port", str(port)]
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *same_port])


async def _serve(options: HubOptions, chosen: Settings) -> int:
    listener = listen(options.host, options.port)
    options.port = listener.getsockname()[1]
    state = options.state_dir
    shelves = Shelves(*stores.chosen(options.store, chosen, state))
    store = shelves.folder
    ledger_url = config.ledger_url(options.ledger, chosen.ledger)
    listens_at = address(options.host, options.port, bool(options.tls))
    reached_at = config.own_url(options.url, chosen.url) or reached_from_afar(listens_at)
    names = [listens_at, reached_at, options.host, *chosen.hosts]
    async with ledgers.opened(ledger_url, state, reached_at) as seat:
        stores.prepare(store, state)
        shown = tls.shown(options.tls, store, state, tls.names_of(names))
        names += shown.names if shown is not None else ()
        if shown is not None and not tls.is_loopback(options.host):
            print(*tls.what_is_open(listens_at, options.gateway_port, shown), sep="\n", file=sys.stderr, flush=True)
        try:
            if isinstance(seat, Shared) and not await _has_come_to_lead(seat, listener, names, state, shelves, shown):
                return 0
            hub = Hub(
                seat.ledger,
                state,
                settings=chosen,
                manifest=options.manifest,
                gateway=f"{options.host}:{options.gateway_port}",
                config_file=config.config_file(options.config, state),
                seat=seat,
                shelves=shelves,
                names=names,
                shown=shown,
            )
            collecting.settle()
            server = Server(hub.app, shown)
            say_where(state, listens_at)
            _log.info("hub listens on %s", listens_at)
            return await hub.serve(server, listener)
        except (Deposed, NotYet) as error:
            if not seat.term:
                raise
            _log.critical("the hub stops before it has begun to lead: %s", error)
            return STAND_BY
        finally:
            with contextlib.suppress(OSError):
                (state / "hub.url").unlink()


async def _has_come_to_lead(
    seat: Shared,
    listener: socket.socket,
    names: Sequence[str],
    state: Path,
    shelves: Shelves,
    shown: tls.Shown | None,
) -> bool:
    """Answers as a standby until then, at the first of these names. False: it was told to stop before."""
    store = shelves.folder
    stores.refuse_another(seat.ledger, store, seat.ledger.shown)
    if not await seat.try_to_lead():
        standby = Standby(seat, store, names, shelves)
        standby.follow_files(lambda: stores.prepare(store, state))
        server, told = Server(standby.app, shown), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        # Of its own: whoever connects while this hub begins to lead waits for it, and is not turned away.
        serving = asyncio.create_task(server.serve(sockets=[listener.dup()]))
        waiting = asyncio.create_task(standby.until_it_leads())
        stopping = asyncio.create_task(told.wait())
        say_where(state, names[0])
        await asyncio.wait({serving, waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        server.stop()
        stopping.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait({serving}, timeout=1)
            return False
        await waiting
    _log.info("leads on the ledger %s, in term %d", seat.ledger.shown, seat.term)
    stores.claim(seat.ledger, store, seat.ledger.shown)
    return True


class Hub:
    """The parts of a hub around one ledger, wired to each other."""

    def __init__(
        self,
        ledger: Ledger,
        state: Path,
        clock: Clock | None = None,
        settings: Settings | None = None,
        manifest: Path | None = None,
        gateway: str = "127.0.0.1:0",
        config_file: Path | None = None,
        seat: Seat | None = None,
        shelves: Shelves | None = None,
        names: Sequence[str] = (),
        shown: tls.Shown | None = None,
    ) -> None:
        self.shown = shown
        self.seat = seat = seat or Alone(ledger)
        shelves = shelves or Shelves(state)
        self.shelves, store = shelves, shelves.folder
        clock = clock or SystemClock()
        chosen = settings or Settings()
        now = clock.monotonic()
        snapshot = ledger.load(with_jobs=False)
        hosts, epoch = _hosts(snapshot.manifest), clock.wall() - now
        with collecting.paused():
            fleet = restore(snapshot, new_attempt_id, now, epoch, hosts, ledger.live_jobs(), ledger.kept(LEASES))
        fleet.set_quotas(chosen.quotas)
        fleet.policy = chosen.scheduling
        performer = Performer()
        self.loop = Loop(fleet, ledger, performer, clock)
        self.loop.confirm = seat.confirm
        self.feed = feed = Feed(self.loop, snapshot.last_feed_seq)
        self.metrics = metrics = Metrics(self.loop)
        artifacts, checkpoints = shelves.artifacts(), shelves.checkpoints()
        checkpoints.prune(fleet.checkpoints, KEEP_CHECKPOINTS_S)
        brought = Artifacts(artifacts)
        self.sessions = Sessions(self.loop.post, metrics.text, brought)
        self.sessions.hubs = lambda: several([hub.url for hub in seat.hubs() if hub.url])
        self.sessions.wall = clock.wall
        self.loop.taken = self.sessions.taken
        self.logs = logs = Logs(shelves.logs(), self.loop, self.sessions)
        performer.wire(self.loop, self.sessions, feed, metrics, logs, artifacts, checkpoints)
        access = Access(store, snapshot.tokens, clock.wall)
        blobs = shelves.snapshots()
        templates = Templates(chosen.templates)
        jobs_api = JobsApi(self.loop, feed, blobs.shelf, templates)
        overview = Overview(self.loop, feed)
        fleet_api = FleetApi(self.loop, feed, metrics, overview, clock.wall(), seat)
        self.services = Services(self.loop, feed, self.sessions)
        jobs_api.brought = Brought(store / "snapshots" / ".brought", blobs.shelf)
        reach = Reach(self.loop, self.sessions, blobs, jobs_api.brought)
        logs_api = LogsApi(self.loop, feed, jobs_api, logs, blobs, checkpoints, reach)
        self.manifest = ManifestApi(self.loop, manifest)
        self.artifacts = ArtifactsApi(self.loop, artifacts)
        sweeps = SweepsApi(self.loop, overview)
        training = table.TrainingApis(PullApi(self.loop, brought), self.manifest, sweeps, self.artifacts)
        kept = ledger.kept(GATEWAY_SCOPE)
        self.gateway = self._gateway(chosen.gateway, access, logs, state, gateway, kept)
        self.gateway.callers.names = [*names, *chosen.hosts]
        performer.gateway = self.gateway
        self.notices = performer.notices = self._notices(chosen, snapshot.last_feed_seq, names, jobs_api)
        self.keeper = Keeper(self.loop, chosen.retention, logs, self.artifacts, clock.wall)
        self.keeper.tidy = shelves.tidy
        fleet_api.retention = self.keeper.document
        self.disk = self._disk([state, store], chosen.disk, fleet_api, jobs_api)
        self.traces = performer.traces = traces.opened(self.loop)
        metrics.more = self._told
        followed = config_file or state / config.CONFIG_FILE
        self.config = ConfigFile(followed, self.gateway, lambda path: load_settings(path).gateway)
        models = ModelsApi(self.gateway, self.config)
        foresight = self._foresight(jobs_api, templates)
        web = Web(access, Origins([*names, *chosen.hosts]), chosen.limits, clock.wall)
        web.cookies.follow(ledger.kept(ENDED_SESSIONS))
        enrol_api, session_api = self._enrol(web, store, state), SessionApi(web, self.loop)
        api = (jobs_api, logs_api, fleet_api, enrol_api, self.services, training, models, foresight)
        routes = table.routes(*api, session_api, Pages())
        routes += looking(self.sessions, jobs_api, logs, artifacts, self.playground)
        guard(routes, self.loop, jobs_api, self.sessions, web, store, clock.wall)
        beside = Beside(self.loop, jobs_api, self.sessions, self.services.relays)
        sockets = table.sockets(self.sessions, CliSocket(fleet_api), self.services, beside)
        self.app: ASGIApp = application(routes, sockets, web)

    def _told(self) -> Iterator[Metric]:
        for one in (self.gateway, self.keeper, self.disk, self.traces, self.notices):
            yield from one.collect()

    def _foresight(self, jobs_api: JobsApi, templates: Templates) -> table.ForesightApis:
        """What would happen, and why things are as they are."""
        self.foresight = Foresight(self.loop)
        jobs_api.foretold = self.foresight.seen
        why = WhyApi(self.loop, jobs_api, self.foresight, self.logs)
        whatif, queue = WhatIfApi(self.loop, jobs_api, self.foresight, templates), QueueApi(self.loop, self.foresight)
        return table.ForesightApis(why, whatif, queue, TimelineApi(self.loop))

    def _notices(self, chosen: Settings, last_seq: int, names: Sequence[str], jobs_api: JobsApi) -> Notices:
        """Who is told what became of jobs, and by which name of this hub."""
        notices = Notices(self.loop, chosen.notify, last_seq, names[1] if len(names) > 1 else "")
        jobs_api.check_notices = notices.check
        return notices

    def _disk(self, folders: list[Path], settings: DiskSettings, fleet_api: FleetApi, jobs_api: JobsApi) -> Disk:
        disk = Disk(folders, settings)
        fleet_api.disk = disk.document
        jobs_api.room = self.manifest.room = disk.refuse_if_low
        return disk

    def _enrol(self, web: Web, store: Path, state: Path) -> EnrolApi:
        """Who comes in, and how everything ends that came in with a token when that is good no more."""
        web.connections.others.append(self.sessions.cut)
        enrol_api = EnrolApi(self.loop, web.access, self.sessions, web.connections)
        enrol_api.fingerprint = self.shown.fingerprint if self.shown is not None else ""
        enrol_api.renew_file = lambda kind: stores.renew_token(store, state, kind)
        cut_sessions = partial(web.connections.cut_sessions, web.cookies.is_over)
        self._expiry = partial(connections.watch, web.access.expired, enrol_api.expired, cut_sessions)
        return enrol_api

    def _gateway(
        self, chosen: GatewaySettings, access: Access, logs: Logs, state: Path, listen: str, kept: dict[str, bytes]
    ) -> Gateway:
        for where, what in chosen.notes:
            _log.warning("%s: %s", where, what)

        def keys() -> list[KeySetup]:
            callers = [KeySetup(one.digest, one.user, one.role) for one in access.of_roles(*CALLERS)]
            workers = [KeySetup(one.digest, one.user, "worker") for one in access.of_roles("worker", "join")]
            return [*callers, *workers, *playground.keys()]

        gateway = Gateway(
            self.loop,
            self.services.relays,
            chosen,
            listen=listen,
            spool=state / "spool",
            keys=keys,
            kept=kept,
            identity=self.shown.identity if self.shown is not None else None,
        )
        playground = self.playground = Playground(gateway, self.shown.identity if self.shown is not None else None)
        access.changed = gateway.callers.changed
        GatewayPages(gateway, logs)
        return gateway

    async def serve(self, server: Server, listener: socket.socket) -> int:
        """Both the loop and the listener, or neither; and only while this hub leads. 0: it was stopped, 1: it failed,
        STAND_BY: another may lead now."""
        self.loop.audit.note(None, "hub.start", user="hub", detail=f"version {__version__}, term {self.seat.term}")
        await self.loop.start()
        deciding = asyncio.create_task(self.loop.run())
        watching = asyncio.create_task(self.metrics.lag.watch())
        await asyncio.to_thread(self.shelves.adopt)
        self.settling = asyncio.create_task(self._settle())
        if self.shelves.client is None:
            await self.settling
        await self.manifest.follow_file()
        relaying = asyncio.create_task(self.gateway.run())
        following = asyncio.create_task(self.config.follow())
        keeping = asyncio.create_task(self.keeper.run())
        measuring = asyncio.create_task(self.disk.watch())
        tracing = asyncio.create_task(self.traces.run())
        auditing = asyncio.create_task(self.loop.audit.run())
        telling = asyncio.create_task(self.notices.run())
        expiring = asyncio.create_task(self._expiry())
        showing = asyncio.create_task(self.shown.keep()) if self.shown is not None else expiring
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.config.look)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._let_go, server)
        leading = asyncio.create_task(self.seat.keep())
        await asyncio.wait({deciding, serving, leading}, return_when=asyncio.FIRST_COMPLETED)
        self._let_go(server)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(serving), 10)
        await self.services.close()
        for watcher in (following, watching, keeping, measuring, auditing, telling, expiring, showing, tracing):
            watcher.cancel()
        self.settling.cancel()
        await asyncio.wait({tracing})
        await self.gateway.stop()
        relaying.cancel()
        self.loop.stop()
        deposed = leading.done()
        leading.cancel()
        try:
            await deciding
            if deposed:
                await leading
        except Exception as error:
            _log.critical("the hub stops: %s", error, exc_info=not isinstance(error, LedgerError))
            return STAND_BY if isinstance(error, (Deposed, NotYet)) and self.seat.term else 1
        return 0

    async def _settle(self) -> None:
        """What an earlier hub, or a crash, has left to do in the store."""
        await self.artifacts.repair()
        await self.shelves.move_in()

    def _let_go(self, server: Server) -> None:
        """Take nothing new, and end what would never end by itself."""
        server.stop()
        self.services.let_go()
        self.playground.let_go()
        self.artifacts.let_go()
        self.shelves.close()
        self.feed.close()
        self.logs.close()
        self.foresight.close()
        self.sessions.close_all()


def several(urls: list[str]) -> list[str]:
    """Of a hub that is the only one nobody needs to be told."""
    return urls if len(urls) > 1 else []


def _hosts(applied: ManifestRecord | None) -> dict[str, HostPolicy]:
    """What the manifest that was applied last says about hosts."""
    if applied is None:
        return {}
    try:
        return read_manifest(applied.text, applied.file).hosts
    except BadInput as error:
        # It was good when it was applied: a newer version may be stricter. The queue stands without it.
        _log.error("the manifest that was applied last is not understood any more, so hosts are free: %s", error)
        return {}


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
