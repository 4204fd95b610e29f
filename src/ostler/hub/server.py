"""Where the hub listens: the socket, uvicorn before it, and what is said of the address."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from ostler.domain.errors import OstlerError
from ostler.hub import files, tls
from ostler.hub.door import Line, door_of
from ostler.hub.session import HandingOver
from ostler.hub.vestibule import Vestibule
from ostler.wire.messages import MAX_FRAME_BYTES

NO_NEWS = ("without completing handshake", "Invalid HTTP request", "Unsupported upgrade request")


class Server(uvicorn.Server):
    """uvicorn as the hub needs it, with its signals left to the hub."""

    def __init__(self, app: ASGIApp, shown: tls.Shown | None = None) -> None:
        self._line, self._shown = Line(files.raise_limit()), shown
        super().__init__(
            uvicorn.Config(
                app,
                http=door_of(self._line),
                ws=HandingOver,
                ws_max_size=MAX_FRAME_BYTES,
                ws_per_message_deflate=False,
                ws_ping_interval=None,
                lifespan="off",
                log_config=None,  # its lines are told like all others
                log_level="warning",
                access_log=False,
                proxy_headers=False,  # whoever calls could say so of itself
                timeout_graceful_shutdown=2,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_is_news)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._shown is None:
            await super().startup(sockets)
            return
        await super().startup([])
        state, door = self.server_state, cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        enter = partial(door, config=self.config, server_state=state, app_state=self.lifespan.state)
        for listener in sockets or ():
            before = Vestibule(listener, self._shown.identity.context, self._line, state.connections, enter)
            self.servers.append(cast(asyncio.Server, before))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.should_exit = True


def _is_news(record: logging.LogRecord) -> bool:
    """uvicorn takes every socket that was refused with an answer for a fault, and tells of everybody who talks
    nonsense: both are others' doing, as often as they like."""
    return not any(said in record.msg for said in NO_NEWS)


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named so that asyncio knows it for TCP and sends small answers at once.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        told = f"cannot listen on {host}:{port}: {error.strerror}; is another hub running? --port N takes another port"
        raise OstlerError(told) from None
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def address(host: str, port: int, with_tls: bool = False) -> str:
    return f"http{'s' if with_tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


def reached_from_afar(listens_at: str) -> str:
    """Every address of a machine is none; by its name others may find it."""
    name = socket.gethostname()
    return listens_at.replace("//0.0.0.0:", f"//{name}:").replace("//[::]:", f"//{name}:")


def say_where(state: Path, url: str) -> None:
    """For whoever started the hub on a port of the system's choice, as this machine reaches it."""
    url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    temporary = state / ".hub.url"
    temporary.write_text(url + "\n")
    os.replace(temporary, state / "hub.url")
