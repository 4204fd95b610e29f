"""`ostler`, which counts every commit and every send of its process, and can be told to die at one of them.

CRASH_ROLE says whose are counted (`hub` or `worker`), CRASH_LOG where each is written down, and CRASH_AT at which of them
the process kills itself, as `kill -9` does: 2n - 1 is before the n-th, 2n after it.
"""

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import aiohttp

import ostler.core.attempts
import ostler.core.claims
import ostler.core.persist
import ostler.hub.main
import ostler.hub.session
import ostler.ledger.sqlite
import ostler.runtime.link
import ostler.worker.carrying
import ostler.worker.connection
import ostler.worker.main
from ostler.cli.main import main

LEASE_S = 5.0
BEAT_S = 1.0


class Points:
    def __init__(self, at: int, log: str) -> None:
        self._at = at
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._count = 0
        self._lock = threading.Lock()

    def reach(self, what: str) -> None:
        """Commits and sends happen on different threads: the count and the line of the log must agree."""
        with self._lock:
            self._count += 1
            os.write(self._log, f"{what}\n".encode())
            if self._count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, act: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        """The same act with a point before and one after it; none where it has no name."""

        @functools.wraps(act)
        def acts(*given: Any, **more: Any) -> Any:
            if not (what := name(*given, **more)):
                return act(*given, **more)
            self.reach(f"before {what}")
            done = act(*given, **more)
            self.reach(f"after {what}")
            return done

        return acts

    def around_async(self, act: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        @functools.wraps(act)
        async def acts(*given: Any, **more: Any) -> Any:
            if not (what := name(*given, **more)):
                return await act(*given, **more)
            self.reach(f"before {what}")
            done = await act(*given, **more)
            self.reach(f"after {what}")
            return done

        return acts


def in_the_hub(points: Points) -> None:
    """Every commit, every write to a worker's socket, every answer to a request that changes something."""
    ledger, session, server = ostler.ledger.sqlite.SqliteLedger, ostler.hub.session.Session, ostler.hub.main.Server
    ledger.commit = points.around(ledger.commit, lambda _, changes: "commit" if changes else "")  # type: ignore[method-assign]
    session._flush = points.around(  # type: ignore[method-assign]
        session._flush, lambda one: "frames to a worker" if one._frames and one._transport is not None else ""
    )
    begin = server.__init__

    def begins(self: Any, app: Any, *given: Any, **more: Any) -> None:
        async def answering(scope: Any, receive: Any, send: Any) -> None:
            told = scope["type"] == "http" and scope["method"] != "GET"
            name = f"answer to {scope['method']} {route(scope['path'])}" if told else ""
            await app(scope, receive, points.around_async(send, lambda _: name) if told else send)

        begin(self, answering, *given, **more)

    server.__init__ = begins  # type: ignore[method-assign]


def route(path: str) -> str:
    """Without ids."""
    return "/".join("…" if any(char.isdigit() for char in part[2:]) else part for part in path.split("/"))


def in_the_worker(points: Points) -> None:
    """Every frame to the hub, every request to it, every line to the supervisor."""
    socket, session, link = aiohttp.ClientWebSocketResponse, aiohttp.ClientSession, ostler.runtime.link.Link
    socket.send_frame = points.around_async(socket.send_frame, lambda *_: "frames to the hub")  # type: ignore[method-assign]
    session._request = points.around_async(session._request, lambda _, method, url, **more: f"{method} to the hub")  # type: ignore[method-assign]
    link.send = points.around(link.send, lambda *_, **__: "a line to the supervisor")  # type: ignore[method-assign]


def hurry() -> None:
    """What a machine would wait for after a crash. The times after which one is given up stay as they are: a busy
    machine that is slow must not look like a dead one."""
    ostler.core.claims.LEASE_S = ostler.core.persist.LEASE_S = LEASE_S
    ostler.core.attempts.COOLDOWN_S = 0.1
    ostler.worker.connection.LONGEST_PAUSE_S = 0.3
    ostler.worker.carrying.LOOK_S, ostler.worker.carrying.STILL_S = 0.2, 0.1
    ostler.worker.main.Place = functools.partial(ostler.worker.main.Place, heartbeat_s=BEAT_S)  # type: ignore[misc]


if __name__ == "__main__":
    hurry()
    if (role := os.environ.pop("CRASH_ROLE", "")) and role in sys.argv:
        points = Points(int(os.environ.pop("CRASH_AT", "0")), os.environ.pop("CRASH_LOG"))
        {"hub": in_the_hub, "worker": in_the_worker}[role](points)
    sys.exit(main())
