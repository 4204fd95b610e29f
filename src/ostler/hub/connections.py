"""Which connections came in with which token: when a token is no longer good, they end.

Every request is asked for its token anyway. This is for what lasts: a followed log, the feed, a service's call, an
upload. A worker's socket has its session, which ends it in words of the protocol.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from starlette.types import Scope

from ostler.domain.records import TokenRecord

CONNECTION = "ostler.connection"
"""In the scope of a request, or of a socket: its connection."""
LOOK_S = 1.0
ANSWERED_S, LINGERS_S = 1.0, 2.0
"""For a peer to take what was sent before; then it is cut off."""


class Connection(Protocol):
    """What uvicorn has for each."""

    transport: asyncio.Transport
    came_with: str
    """The token of its last request."""
    leaves: Callable[[Any], None] | None
    """Who hears of its end."""


class Connections:
    def __init__(self) -> None:
        self._by_token: dict[str, set[Connection]] = {}
        self._browsers: dict[Connection, Any] = {}
        """Those that came in with a session's cookie, and the session."""
        self.others: list[Callable[[str], None]] = []
        """Who else ends what came in with a token: they are told its id."""

    def came(self, token_id: str, scope: Scope, session: Any = None) -> None:
        """With each request: for the next one on the same connection, with the same token, this is no work."""
        connection: Connection | None = scope.get(CONNECTION)
        if connection is None:
            return
        if connection.came_with != token_id:
            self.left(connection)
            connection.came_with, connection.leaves = token_id, self.left
            self._by_token.setdefault(token_id, set()).add(connection)
        if session is not None:
            self._browsers[connection] = session
        elif self._browsers:
            self._browsers.pop(connection, None)

    def left(self, connection: Connection) -> None:
        self._browsers.pop(connection, None)
        known = self._by_token.get(connection.came_with)
        if known is not None:
            known.discard(connection)
            if not known:
                del self._by_token[connection.came_with]
        connection.came_with, connection.leaves = "", None

    def count(self, token_id: str) -> int:
        return len(self._by_token.get(token_id, ()))

    def cut(self, token_id: str, told: Connection | None = None) -> None:
        """Whoever came with this token is no longer let in. `told`: who asked for that itself gets its answer first."""
        for connection in list(self._by_token.get(token_id, ())):
            self._close(connection, ANSWERED_S if connection is told else 0.0)
        for end in self.others:
            end(token_id)

    def cut_sessions(self, is_over: Callable[[Any], bool]) -> None:
        """Whoever came with the cookie of a session that is over is no longer let in, though its token is good."""
        for connection, session in list(self._browsers.items()):
            if is_over(session):
                self._close(connection)

    def _close(self, connection: Connection, after_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        if after_s:
            loop.call_later(after_s, connection.transport.close)
        else:
            connection.transport.close()
        loop.call_later(LINGERS_S, connection.transport.abort)

    def inherit(self, old: str, new: str) -> None:
        """What came in with the old token goes on with the one in its place."""
        for connection in self._by_token.pop(old, ()):
            connection.came_with = new
            self._by_token.setdefault(new, set()).add(connection)


async def watch(
    expired: Callable[[], list[TokenRecord]], ended: Callable[[TokenRecord], None], cut_sessions: Callable[[], None]
) -> None:
    """For as long as the hub runs: nobody brings the news that the time of a token, or of a session, is over."""
    while True:
        await asyncio.sleep(LOOK_S)
        for token in expired():
            ended(token)
        cut_sessions()
