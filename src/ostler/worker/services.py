"""Services that run here: the port each of them has, and polls of how it is."""

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Collection

import aiohttp
import msgspec

from ostler.worker.events import ServiceProbed
from ostler.worker.orders import Checks

HOST = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Below the range from which systems take ports for outgoing connections: one of those must not come in between."""
FIRST_PAUSE_S, STARTING_PAUSE_S = 0.05, 1.0
"""Until a service has been well for the first time it is looked at more often: somebody waits for it."""
SHORTEST_INTERVAL_S = 0.05
SHORTEST_PATIENCE_S, LONGEST_PATIENCE_S = 1.0, 10.0
PLAIN = Checks()


class NoPort(OSError):
    """Every port that services may have on this machine is taken."""


class _Service(msgspec.Struct):
    port: int
    polling: asyncio.Task[None] | None = None


class Services:
    """`runs` tells whether an attempt is still held, `tell` takes what the polls find."""

    def __init__(self, runs: Callable[[str], bool], tell: Callable[[ServiceProbed], None]) -> None:
        self._runs = runs
        self._tell = tell
        self._services: dict[str, _Service] = {}
        self._session: aiohttp.ClientSession | None = None

    def allot(self, attempt: str, wanted: int = 0) -> int:
        """A port that nothing uses and no other service here was given; or the one that is wanted, if it is such."""
        self._drop_ended()
        taken = {one.port for one in self._services.values()}
        if wanted and (wanted in taken or not _is_free(wanted)):
            raise NoPort(f"port {wanted} is taken on this machine")
        port = wanted or free_port(taken)
        self._services[attempt] = _Service(port)
        return port

    def port(self, attempt: str) -> int:
        """Where it listens; 0 if there is no such service here."""
        service = self._services.get(attempt)
        return service.port if service is not None and self._runs(attempt) else 0

    def watch(self, attempt: str, port: int, checks: Checks | None) -> None:
        """Poll it until it has ended."""
        polling = asyncio.get_running_loop().create_task(self._poll(attempt, port, checks or PLAIN))
        self._services[attempt] = _Service(port, polling)

    async def close(self) -> None:
        polling = [one.polling for one in self._services.values() if one.polling is not None]
        for task in polling:
            task.cancel()
        await asyncio.gather(*polling, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _drop_ended(self) -> None:
        for attempt in [attempt for attempt in self._services if not self._runs(attempt)]:
            service = self._services.pop(attempt)
            if service.polling is not None:
                service.polling.cancel()

    async def _poll(self, attempt: str, port: int, checks: Checks) -> None:
        interval_s = max(SHORTEST_INTERVAL_S, checks.interval_secs)
        pause_s = min(FIRST_PAUSE_S, interval_s)
        was_well = False
        while self._runs(attempt):
            found = await self._look(attempt, port, checks, was_well)
            self._tell(found)
            was_well = was_well or not found.not_ready
            pause_s = interval_s if was_well else min(1.5 * pause_s, STARTING_PAUSE_S, interval_s)
            await asyncio.sleep(pause_s)

    async def _look(self, attempt: str, port: int, checks: Checks, was_well: bool) -> ServiceProbed:
        """A service that still starts is only asked whether it is ready: it may take its time."""
        patience_s = min(max(checks.interval_secs, SHORTEST_PATIENCE_S), LONGEST_PATIENCE_S)
        ready = ("readiness", checks.readiness) if checks.readiness else ("liveness", checks.liveness)
        if not checks.readiness and not checks.liveness:
            return ServiceProbed(attempt=attempt, not_ready=await _knock(port, patience_s))
        if not was_well:
            return ServiceProbed(attempt=attempt, not_ready=await self._get(*ready, port, patience_s))
        not_alive = await self._get("liveness", checks.liveness, port, patience_s) if checks.liveness else ""
        asks_more = bool(checks.readiness) and not not_alive
        not_ready = await self._get("readiness", checks.readiness, port, patience_s) if asks_more else ""
        return ServiceProbed(attempt=attempt, not_ready=not_ready, not_alive=not_alive)

    async def _get(self, kind: str, path: str, port: int, patience_s: float) -> str:
        """What is wrong, or nothing."""
        name = f"{kind} /{path.lstrip('/')}"
        url = f"http://{HOST}:{port}/{path.lstrip('/')}"
        timeout = aiohttp.ClientTimeout(total=patience_s)
        try:
            async with self._web().get(url, timeout=timeout, allow_redirects=False) as answer:
                return "" if answer.status < 400 else f"{name} answered {answer.status}"
        except TimeoutError:
            return f"{name} did not answer within {patience_s:g} s"
        except aiohttp.ClientConnectorError as error:
            return f"{name}: {error.os_error.strerror or error.os_error}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{name}: {str(error) or type(error).__name__}"

    def _web(self) -> aiohttp.ClientSession:
        """Its own, without cookies: nothing of one service's answers reaches another, and nothing of the hub's."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), connector=connector)
        return self._session


async def _knock(port: int, patience_s: float) -> str:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(HOST, port), patience_s)
    except TimeoutError:
        return f"port {port} did not accept a connection within {patience_s:g} s"
    except OSError as error:
        return f"port {port}: {_plainly(error)}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


def _plainly(error: OSError) -> str:
    """asyncio's own text repeats the address and the number."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return error.strerror or str(error) or type(error).__name__


def free_port(taken: Collection[int]) -> int:
    """At random: two workers on one machine then hardly ever give away the same one at the same time."""
    start = random.randrange(len(PORTS))
    for place in range(len(PORTS)):
        port = PORTS[(start + place) % len(PORTS)]
        if port not in taken and _is_free(port):
            return port
    raise NoPort(f"no port is free between {PORTS.start} and {PORTS.stop - 1}")


def _is_free(port: int) -> bool:
    """On every address: a service may well listen on more than the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
