"""New connections to instances: straight, with TLS, or opened from the other end by the worker whose process it is."""

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from ostler.gateway.control import NeedTunnel, ToHub
from ostler.gateway.relay.upstream import Upstream

if TYPE_CHECKING:
    from ostler.gateway.relay.instances import Instance

KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""In seconds. A tunnel lies idle between requests: what is between two machines forgets a silent connection, and a
machine that is gone says nothing."""


class Connecting:
    def __init__(self, send: Callable[[ToHub], None], within_s: float) -> None:
        self._send = send
        self._within_s = within_s
        self._awaited: dict[str, tuple[Instance, asyncio.Future[Upstream]]] = {}
        """Tunnels that were asked for, by their keys."""

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def open(self, instance: "Instance") -> Upstream:
        """Raises `OSError`, which says why not."""
        try:
            async with asyncio.timeout(self._within_s):
                return await (self._tunnel(instance) if instance.way.tunnel else self._straight(instance))
        except TimeoutError:
            who = "its worker opened no connection to it" if instance.way.tunnel else "no answer"
            raise ConnectionError(f"{who} within {self._within_s:g} s") from None

    async def _straight(self, instance: "Instance") -> Upstream:
        tls = self._tls if instance.way.tls else None
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(lambda: Upstream(instance), instance.host, instance.port, ssl=tls)
        return upstream

    # Tunnels

    async def _tunnel(self, instance: "Instance") -> Upstream:
        key = secrets.token_urlsafe(24)
        came: asyncio.Future[Upstream] = asyncio.get_running_loop().create_future()
        self._awaited[key] = (instance, came)
        self._send(NeedTunnel(instance.id, key))
        try:
            return await came
        except asyncio.CancelledError:
            if came.done() and not came.cancelled() and came.exception() is None:
                came.result().transport.close()  # it came in the very turn in which the time was up
            raise
        finally:
            self._awaited.pop(key, None)

    def awaits(self, key: str, worker: str) -> bool:
        """From this worker; one without a name may be any."""
        instance, came = self._awaited.get(key, (None, None))
        if instance is None or came is None or came.done():
            return False
        return not worker or not instance.way.worker or worker == instance.way.worker

    def came(self, key: str, transport: asyncio.Transport, worker: str = "") -> Upstream:
        """The connection that was asked for under this key, which is good for no other."""
        instance, came = self._awaited.pop(key)
        _keep_alive(transport)
        upstream = Upstream(instance)
        upstream.opened_by = worker
        upstream.connection_made(transport)
        came.set_result(upstream)
        return upstream

    def will_not_come(self, key: str, reason: str) -> None:
        _, came = self._awaited.pop(key, (None, None))
        if came is not None and not came.done():
            came.set_exception(ConnectionError(reason))

    def none_will_come(self, reason: str) -> None:
        for key in list(self._awaited):
            self.will_not_come(key, reason)


def _keep_alive(transport: asyncio.Transport) -> None:
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
