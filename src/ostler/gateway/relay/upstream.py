"""A connection to a model's server. Bodies pass as the bytes they came in; a parser beside them finds their end."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ostler.gateway.relay.usage import TAIL_BYTES

if TYPE_CHECKING:
    from ostler.gateway.relay.exchange import Exchange
    from ostler.gateway.relay.instances import Instance

MAX_HEAD_BYTES = 64 * 1024
UPLOAD_BYTES = 64 * 1024
HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"upgrade", b"content-length", b"transfer-encoding", b"te")
)


class Upstream(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, instance: "Instance") -> None:
        self.instance = instance
        self.exchange: Exchange | None = None
        self.reused = False
        """The request went over a connection that had served another: it may have been closed by the other side."""
        self._parser = HttpResponseParser(self)
        self._held = False
        self._unsent: Iterator[bytes] | None = None
        self._full = False
        self._reset()

    def _reset(self) -> None:
        self._head = b""
        self.headed = False
        self.status = 0
        self.reason = b""
        self.lines: list[bytes] = []
        self.content_type = b""
        self.length: int | None = None
        self.chunked = False
        self.bodiless = False
        self._chunk_ended = True
        self._last = b""
        self.tail = b""
        self.encoded = False
        self.counts = False
        """The tail may tell how many tokens there were."""
        self.plain: Callable[[bytes], object] | None = None
        """Who gets the body without its chunks, where it is not passed on as it came."""
        self.write: Callable[[bytes], object] = self._nowhere
        self.prefix = b""
        """The head of the answer as the caller gets it, until it does."""
        self._persistent = False
        self._ended = False
        self._left = 0

    def _nowhere(self, data: bytes) -> None:
        pass

    # Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        exchange = self.exchange
        if exchange is None:
            if self in self.instance.idle:
                self.instance.idle.remove(self)
            return
        if error is None and self.headed and self.until_closed:
            self._finish()
            return
        self.exchange = None
        exchange.failed("its server closed the connection before its answer was complete", sent=True)

    @property
    def until_closed(self) -> bool:
        """The answer ends where the connection does."""
        return not self.chunked and self.length is None and not self.bodiless

    @property
    def between_chunks(self) -> bool:
        """What has been passed on ends where a chunk does; another one may follow."""
        return self._chunk_ended and (not self._last or self._last.endswith(b"\r\n"))

    def drop(self) -> None:
        """Nobody wants the answer: closing is how a model's server learns that."""
        self.exchange = self._unsent = None
        self.transport.abort()

    def hold(self, held: bool) -> None:
        """The caller takes no more for now; or it does again."""
        if held is self._held or self.transport.is_closing():
            return
        self._held = held
        if held:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # The request

    def begin(self, exchange: "Exchange", *, reused: bool) -> None:
        self.exchange = exchange
        self.reused = reused
        self._reset()
        exchange.sent_over(self)
        request = exchange.request
        body = request.body
        head = request.head_for(self.instance)
        if body.in_file:
            self._unsent = body.stream()
            self.transport.write(head)
            self._send_more()
        else:
            # Each write is a call of the kernel, which costs more than to copy what is small.
            self.transport.write(head + body.data)

    @property
    def sent(self) -> bool:
        """The connection has all of the request."""
        return self._unsent is None

    def _send_more(self) -> None:
        while self._unsent is not None and not self._full:
            piece = next(self._unsent, None)
            if piece is None:
                self._unsent = None
            else:
                self.transport.write(piece)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._send_more()

    # The answer

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            self.transport.abort()
            return
        try:
            rest = data if self.headed else self._read_head(exchange, data)
            if rest or self.prefix:
                self._pass_on(exchange, rest)
        except HttpParserError as error:
            self.drop()
            exchange.failed(f"its server sent what is not HTTP: {error.__context__ or error}", sent=True, again=False)
            return
        if self._ended and self.exchange is exchange:
            self._finish()

    def _read_head(self, exchange: "Exchange", data: bytes) -> bytes:
        """What comes after the head, once that is complete. Interim answers (1xx) are read over."""
        self._head += data
        while (end := self._head.find(b"\r\n\r\n") + 4) >= 4:
            head, self._head = self._head[:end], self._head[end:]
            try:
                self._parser.feed_data(head)
            except HttpParserUpgrade:
                if exchange.request.upgrades:
                    return self._switch(exchange)
                raise HttpParserError("an upgrade that nobody asked for") from None
            if self.status >= 200:
                self.headed = True
                self.bodiless = self.status in (204, 304)
                if exchange.request.method == b"HEAD":
                    # The parser cannot know this: it would wait for the body. A new one does not.
                    self.bodiless = self._ended = True
                    self._parser = HttpResponseParser(self)
                exchange.answer_begins(self)
                rest, self._head = self._head, b""
                return rest if self.exchange is exchange else b""
        if len(self._head) > MAX_HEAD_BYTES:
            raise HttpParserError("a head without an end")
        return b""

    def _switch(self, exchange: "Exchange") -> bytes:
        rest, self._head = self._head, b""
        self.exchange = None
        exchange.switches(self, rest)
        return b""

    def _pass_on(self, exchange: "Exchange", data: bytes) -> None:
        surplus = len(data) if self._ended else len(data) - self._left if self.length is not None else 0
        if surplus > 0:
            data = data[:-surplus]
            self._persistent = False
        if data:
            self._left -= len(data)
            self._parser.feed_data(data)
            exchange.bytes_out += len(data)
            self._last = data
        if self.prefix:
            data, self.prefix = self.prefix + data, b""
            exchange.passes_on(self)
        self.write(data)

    def _finish(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        self.exchange = None
        self.hold(False)
        # Who refuses a large upload may not have read it, and would take the next request for the rest of it.
        if self._persistent and self.sent and not (self.status >= 400 and exchange.request.body.size > UPLOAD_BYTES):
            self.instance.keep(self)
        else:
            self._unsent = None
            self.transport.close()
        exchange.answer_ended(self)

    # What the parser finds

    def on_message_begin(self) -> None:
        if self._ended:
            raise HttpParserError("more than one answer")
        self.lines = []
        self.reason = b""
        self.length = None
        self.chunked = False

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.headed:
            return
        lowered = name.lower()
        if lowered not in HOP_BY_HOP:
            self.lines.append(name + b": " + value + b"\r\n")
            if lowered == b"content-type":
                self.content_type = value.lower()
            elif lowered == b"content-encoding":
                self.encoded = True
        elif lowered == b"content-length":
            self.length = self._left = int(value)
        elif lowered == b"transfer-encoding":
            self.chunked = True
            if value.strip().lower() != b"chunked":
                raise HttpParserError("an encoding that nobody asked for")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._persistent = self._parser.should_keep_alive()

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_body(self, data: bytes) -> None:
        if self.counts:
            self.tail = (self.tail + data)[-TAIL_BYTES:]
        if self.plain is not None:
            self.plain(data)

    def on_chunk_complete(self) -> None:
        self._chunk_ended = True

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self._ended = True
