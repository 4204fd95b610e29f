"""One process that serves a model, as the relay sees it: its gate, the requests it has, and the connections to it."""

import asyncio
import time
from typing import TYPE_CHECKING

from ostler.gateway.control import Used, Way
from ostler.gateway.relay.heads import Heads
from ostler.gateway.sharing import Sharing

if TYPE_CHECKING:
    from ostler.gateway.relay.catalog import Model
    from ostler.gateway.relay.connecting import Connecting
    from ostler.gateway.relay.exchange import Exchange
    from ostler.gateway.relay.heads import AnswerHead
    from ostler.gateway.relay.limits import Limits
    from ostler.gateway.relay.upstream import Upstream


class Instance:
    __slots__ = (
        *("_begun", "_connecting", "_limits", "alive", "closing", "exchanges", "heads", "host", "id", "idle", "limit"),
        *("lines", "model", "port", "prefix", "served", "sharing", "told", "unloaded", "watched", "way", "works"),
    )

    def __init__(self, name: str, host: str, port: int, way: Way, connecting: "Connecting", limits: "Limits") -> None:
        self.id = name
        self.host = host
        self.port = port
        self.way = way
        self.prefix = way.prefix.rstrip("/").encode()
        self.lines = _own_lines(host, port, way)
        """What heads the headers of each request there."""
        self.model: Model | None = None
        """Whose gate this is, while it stands open."""
        self.limit: int | None = None
        self.closing = False
        """The hub waits to hear that it is drained."""
        self.watched = False
        """The hub hears of the end of its last request at once."""
        self.unloaded = False
        """The hub ends its process because somebody said so."""
        self.alive = True
        self.exchanges: set[Exchange] = set()
        self.served = 0
        self.told = 0
        """How many are here, as the hub was told last."""
        self.heads: Heads[AnswerHead] = Heads(limits.known_heads // 16)
        """Those of its answers."""
        self.idle: list[Upstream] = []
        self.sharing = Sharing()
        """Of the time in which it works."""
        self.works = False
        """It has worked since the last word about that."""
        self._limits = limits
        self._connecting = connecting
        self._begun: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> int:
        return len(self.exchanges)

    def work(self) -> dict[str, float]:
        """For how many seconds it has worked for each user since the last call."""
        now = time.monotonic()
        for exchange in self.exchanges:
            self.sharing.leave(exchange.key.user, exchange.mark, now)
            exchange.mark = self.sharing.enter(now)
        return self.sharing.take()

    def use(self) -> Used:
        self.told = self.in_flight
        return Used(self.id, self.told, self.served)

    def open(self, model: "Model", limit: int | None, *, watched: bool) -> None:
        self.limit = limit
        self.watched = watched
        self.closing = False
        if self.model is not model:
            self.shut()
            self.model = model
            model.open.append(self)

    def shut(self) -> None:
        if self.model is not None:
            self.model.open.remove(self)
            self.model = None

    def gone(self) -> None:
        self.alive = False
        self.shut()
        self.let_go_of_idle()
        for task in self._begun:
            task.cancel()

    def let_go_of_idle(self) -> None:
        for upstream in self.idle:
            upstream.transport.close()
        self.idle.clear()

    # Connections

    def connections(self) -> "list[Upstream]":
        return [*self.idle, *(one.upstream for one in self.exchanges if one.upstream is not None)]

    def begin(self, exchange: "Exchange", *, fresh: bool = False) -> None:
        """Send it over a connection that stands, or over a new one."""
        if self.idle and not fresh:
            self.idle.pop().begin(exchange, reused=True)
            return
        task = asyncio.get_running_loop().create_task(self._connect(exchange))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    async def _connect(self, exchange: "Exchange") -> None:
        try:
            upstream = await self._connecting.open(self)
        except (OSError, UnicodeError) as error:  # the latter of a host that can be no name
            if exchange.instance is self:
                exchange.failed(f"its server cannot be reached: {error}", sent=False)
            return
        if exchange.instance is self and exchange.upstream is None:
            upstream.begin(exchange, reused=False)
        else:
            self.keep(upstream)

    def keep(self, upstream: "Upstream") -> None:
        """A connection that can take another request."""
        if self.alive and len(self.idle) < self._limits.kept_connections and not upstream.transport.is_closing():
            self.idle.append(upstream)
        else:
            upstream.transport.close()


def _own_lines(host: str, port: int, way: Way) -> bytes:
    name = f"[{host}]" if ":" in host else host
    where = name if port == (443 if way.tls else 80) else f"{name}:{port}"
    key = f"Authorization: Bearer {way.api_key}\r\n" if way.api_key else ""
    return f"Host: {where}\r\n{key}".encode()
