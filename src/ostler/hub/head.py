"""The head of an answer waits for its body, and both leave in one piece: written one after the other they wake their
reader twice, and where the reader runs on the same core, the body waits until it has looked at the head alone."""

import asyncio

GO_ON = b"HTTP/1.1 100 "
"""No head of an answer: whoever waits for it has not sent its request yet."""


class HeadWithBody:
    """A connection as one answer sees it. A head without a body at hand leaves with the next turn of the loop."""

    __slots__ = ("_had_head", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._had_head = False

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif self._had_head or data.startswith(GO_ON):
            self._transport.write(data)
        else:
            self._had_head, self._head = True, data
            asyncio.get_running_loop().call_soon(self._let_go)

    def close(self) -> None:
        self._let_go()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _let_go(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)
