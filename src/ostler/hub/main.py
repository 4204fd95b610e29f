"""The hub: all wiring, no logic."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ostler import config
from ostler.core.persist import restore
from ostler.domain.errors import LedgerError, OstlerError
from ostler.hub.access import Access
from ostler.hub.api import table
from ostler.hub.api.fleet import FleetApi
from ostler.hub.api.jobs import JobsApi
from ostler.hub.api.logs import LogsApi
from ostler.hub.api.routes import application
from ostler.hub.api.templates import Templates
from ostler.hub.cli_socket import CliSocket
from ostler.hub.clock import Clock, SystemClock
from ostler.hub.feed import Feed
from ostler.hub.ids import new_attempt_id
from ostler.hub.logs import Logs
from ostler.hub.loop import Loop
from ostler.hub.metrics import Metrics
from ostler.hub.perform import Performer
from ostler.hub.services import Services
from ostler.hub.sessions import Sessions
from ostler.hub.settings import Settings
from ostler.hub.settings import load as load_settings
from ostler.ledger.base import Ledger
from ostler.ledger.sqlite import SqliteLedger
from ostler.store.blobs import BlobStore
from ostler.store.logs import LogStore
from ostler.wire.messages import MAX_FRAME_BYTES

_log = logging.getLogger("ostler.hub")


@dataclass
class HubOptions:
    host: str = "127.0.0.1"
    port: int = config.DEFAULT_PORT
    state_dir: Path = field(default_factory=config.state_dir)
    log_level: str = "info"
    config: Path | None = None
    """The settings file; None: that of the state folder, where there is one."""


def run(options: HubOptions) -> int:
    """Until it is told to stop. The exit code: 0 stopped, 1 failed, 2 could not start."""
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    try:
        options.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        chosen = load_settings(config.config_file(options.config, options.state_dir))
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(options, chosen))
    except OstlerError as error:
        print(f"ostler hub: {error}", file=sys.stderr)
        return 1 if isinstance(error, LedgerError) else 2
    except OSError as error:
        print(f"ostler hub: {error.strerror or error} ({options.state_dir})", file=sys.stderr)
        return 2


async def _serve(options: HubOptions, chosen: Settings) -> int:
    listener = _listen(options.host, options.port)
    ledger = SqliteLedger(options.state_dir / "ostler.db")
    try:
        hub = Hub(ledger, options.state_dir, settings=chosen)
        gc.collect()
        gc.freeze()  # a long queue is not walked again and again in search of garbage
        server = Server(hub.app)
        url = f"http://{options.host}:{listener.getsockname()[1]}"
        _say_where(options.state_dir, url)
        _log.info("hub listens on %s", url)
        return await hub.serve(server, listener)
    finally:
        ledger.close()
        with contextlib.suppress(OSError):
            (options.state_dir / "hub.url").unlink()


class Hub:
    """The parts of a hub around one ledger, wired to each other."""

    def __init__(
        self,
        ledger: Ledger,
        state: Path,
        clock: Clock | None = None,
        settings: Settings | None = None,
    ) -> None:
        clock = clock or SystemClock()
        chosen = settings or Settings()
        now = clock.monotonic()
        snapshot = ledger.load()
        fleet = restore(snapshot, new_attempt_id, now, clock.wall() - now)
        fleet.quotas = chosen.quotas
        performer = Performer()
        self.loop = Loop(fleet, ledger, performer, clock)
        self.feed = feed = Feed(self.loop, snapshot.last_feed_seq)
        metrics = Metrics(self.loop)
        self.sessions = Sessions(self.loop.post, metrics.text)
        self.logs = logs = Logs(LogStore(state / "logs"), self.loop, self.sessions)
        performer.wire(self.loop, self.sessions, feed, metrics, logs)
        access = Access(state, snapshot.tokens)
        blobs = BlobStore(state / "snapshots")
        jobs_api = JobsApi(self.loop, feed, blobs, Templates(chosen.templates))
        fleet_api = FleetApi(self.loop, feed, access, metrics, clock.wall())
        self.services = Services(self.loop, feed, self.sessions)
        routes = table.routes(jobs_api, LogsApi(self.loop, feed, jobs_api, logs, blobs), fleet_api, self.services)
        sockets = table.sockets(self.sessions, CliSocket(fleet_api), self.services)
        self.app: ASGIApp = application(routes, sockets, access)

    async def serve(self, server: "Server", listener: socket.socket) -> int:
        """Both the loop and the listener, or neither."""
        await self.loop.start()
        deciding = asyncio.create_task(self.loop.run())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._let_go, server)
        await asyncio.wait({deciding, serving}, return_when=asyncio.FIRST_COMPLETED)
        self._let_go(server)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(serving), 10)
        await self.services.close()
        self.loop.stop()
        try:
            await deciding
        except Exception as error:
            _log.critical("the hub stops: %s", error, exc_info=not isinstance(error, LedgerError))
            return 1
        return 0

    def _let_go(self, server: "Server") -> None:
        """Take nothing new, and end what would never end by itself."""
        server.stop()
        self.services.let_go()
        self.feed.close()
        self.logs.close()
        self.sessions.close_all()


class Server(uvicorn.Server):
    """uvicorn as the hub needs it, with its signals left to the hub."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ws_max_size=MAX_FRAME_BYTES,
                ws_per_message_deflate=False,
                ws_ping_interval=None,
                lifespan="off",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=2,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named so that asyncio knows it for TCP and sends small answers at once.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OstlerError(f"cannot listen on {host}:{port}: {error.strerror}; is another hub running?") from None
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def _say_where(state: Path, url: str) -> None:
    """For whoever started the hub on a port of the system's choice."""
    temporary = state / ".hub.url"
    temporary.write_text(url + "\n")
    os.replace(temporary, state / "hub.url")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
