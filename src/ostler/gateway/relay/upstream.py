"""A connection to a model's server. Bodies pass as the bytes they came in; a parser beside them finds their end."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ostler.gateway.relay.answers import LAST_CHUNK, chunk
from ostler.gateway.relay.chunks import MAX_FILL_BYTES, OpenChunk, open_chunk
from ostler.gateway.relay.heads import AnswerHead
from ostler.gateway.relay.request import HUB_COOKIES
from ostler.gateway.relay.usage import TAIL_BYTES

if TYPE_CHECKING:
    from ostler.gateway.relay.exchange import Exchange
    from ostler.gateway.relay.instances import Instance

MAX_HEAD_BYTES = 64 * 1024
UPLOAD_BYTES = 64 * 1024
NOT_PASSED_ON = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"upgrade", b"content-length", b"transfer-encoding"),
        *(b"te", b"x-request-id"),
    )
)
"""Headers of this connection, and one that the relay writes itself."""
NO_HEAD = AnswerHead()
LF = ord("\n")
ENDS_WITH_DONE = frozenset((b"/v1/chat/completions", b"/v1/completions"))


class Upstream(asyncio.Protocol):
    transport: asyncio.Transport
    opened_by: str | None = None
    """The worker that opened it; None: the relay did."""

    def __init__(self, instance: "Instance") -> None:
        self.instance = instance
        self.exchange: Exchange | None = None
        self.reused = False
        """The request went over a connection that had served another: it may have been closed by the other side."""
        self._parser = HttpResponseParser(self)
        self._held = False
        self.unsent: Iterator[bytes] | None = None
        """The rest of the request, which waits for room."""
        self._full = False
        self._reset()

    def _reset(self) -> None:
        """Ready for an answer: what is not said here is said by its head."""
        self.head = NO_HEAD
        self._unread = b""
        """What there is of a head that is not complete."""
        self.headed = False
        self.length: int | None = None
        self.bodiless = False
        self._chunk_ended = True
        self._open_chunk: OpenChunk | None = None
        """Between two chunks there is none."""
        self._tail = b""
        self.plain: Callable[[bytes], object] | None = None
        """Who gets the body without its chunks, where it is not passed on as it came."""
        self.write: Callable[[bytes], object] = self._nowhere
        self.prefix = b""
        """The head of the answer as the caller gets it, until it does."""
        self._surplus = False
        """More came than the answer has."""
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
        if error is None and self.headed and self.until_closed and not self.lacks_done:
            self._finish()
            return
        self.exchange = None
        exchange.failed("its server closed the connection before its answer was complete", sent=True)

    @property
    def until_closed(self) -> bool:
        """The answer ends where the connection does."""
        return not self.head.chunked and self.length is None and not self.bodiless

    @property
    def lacks_done(self) -> bool:
        """An event stream that ends where the connection does, and that should have ended with `[DONE]`."""
        exchange = self.exchange
        ends_so = exchange is not None and exchange.request.head.path in ENDS_WITH_DONE
        return ends_so and self.head.is_stream and not self.head.encoded and b"[DONE]" not in self._tail

    def fill(self, event: bytes) -> bytes | None:
        """What an event stream that breaks off is passed on with, so that this event is the last of a whole body; None:
        the body cannot be ended so."""
        if self.length is not None:
            left = self._left - len(event)
            return event + b"\n" * left if 0 <= left <= MAX_FILL_BYTES else None
        if not self.head.chunked:
            return event
        rest = b"" if self._open_chunk is None else self._open_chunk.rest()
        return None if rest is None else rest + chunk(event) + LAST_CHUNK

    def drop(self) -> None:
        """Nobody wants the answer: closing is how a model's server learns that."""
        self.exchange = self.unsent = None
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
        exchange.sent_over(self)
        request = exchange.request
        writes = exchange.relay.writes
        # Whoever has had comments in plain text cannot be told that what follows is compressed.
        is_plain = exchange.loading is not None and exchange.loading.begun
        writes.add(self.transport, request.written_for(self.instance, plain=is_plain))
        if request.body.in_file:
            writes.flush()
            self.unsent = request.body.stream()
            self._send_more()

    def _send_more(self) -> None:
        while self.unsent is not None and not self._full:
            piece = next(self.unsent, None)
            if piece is None:
                self.unsent = None
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
            if self.headed:
                self._read_body(exchange, data)
            elif not self._seen_before(exchange, data):
                self._read_head(exchange, data)
        except HttpParserError as error:
            self.drop()
            exchange.failed(f"its server sent what is not HTTP: {error.__context__ or error}", sent=True, again=False)
            return
        if self._ended:
            self._finish()

    def _seen_before(self, exchange: "Exchange", data: bytes) -> bool:
        """It is a whole answer with a head that came before, on whichever connection. All of it is passed on."""
        if self._unread or exchange.request.head.method == b"HEAD":
            return False
        found = self.instance.heads.find(data)
        if found is None:
            return False
        self.head, body = found
        self.headed = self._ended = True
        self.length = len(body)
        exchange.answer_begins(self)
        self.on_body(body)
        self._pass_on(exchange, body)
        return True

    def _read_head(self, exchange: "Exchange", data: bytes) -> None:
        """And what of the body is there. Interim answers (1xx) are read over."""
        alone = not self._unread
        self._unread += data
        while (end := self._unread.find(b"\r\n\r\n") + 4) >= 4:
            head, self._unread = self._unread[:end], self._unread[end:]
            try:
                self._parser.feed_data(head)
            except HttpParserUpgrade:
                if exchange.request.head.upgrades:
                    self._switch(exchange)
                    return
                raise HttpParserError("an upgrade that nobody asked for") from None
            if self.head.status >= 200:
                self._begin(exchange)
                if alone and not self.bodiless and self.length is not None:
                    self.instance.heads.keep(data, self.length, self.head)
                return
        if len(self._unread) > MAX_HEAD_BYTES:
            raise HttpParserError("a head without an end")

    def _begin(self, exchange: "Exchange") -> None:
        self.headed = True
        self.bodiless = self.head.status in (204, 304)
        if exchange.request.head.method == b"HEAD":
            # The parser cannot know this: it would wait for the body. A new one does not.
            self.bodiless = self._ended = True
            self._parser = HttpResponseParser(self)
        exchange.answer_begins(self)
        self._read_body(exchange, self._unread)

    def _switch(self, exchange: "Exchange") -> None:
        self.exchange = None
        exchange.switches(self, self._unread)

    def _read_body(self, exchange: "Exchange", data: bytes) -> None:
        surplus = len(data) if self._ended else len(data) - self._left if self.length is not None else 0
        if surplus > 0:
            data = data[:-surplus]
            self._surplus = True
        if data:
            self._left -= len(data)
            self._parser.feed_data(data)
            # The line feed that ends a piece between two chunks is the end of the one before.
            if (not self._chunk_ended or data[-1] != LF or self._open_chunk is not None) and self.head.chunked:
                self._open_chunk = open_chunk(self._open_chunk, data)
        if data or self.prefix:
            self._pass_on(exchange, data)

    def _pass_on(self, exchange: "Exchange", data: bytes) -> None:
        exchange.bytes_out += len(data)
        if self.prefix:
            data, self.prefix = self.prefix + data, b""
            exchange.passes_on(self)
        self.write(data)

    def _finish(self) -> None:
        exchange, head, tail = self.exchange, self.head, self._tail
        assert exchange is not None
        self.exchange = None
        if self._held:
            self.hold(False)
        # Who refuses a large upload may not have read it, and would take the next request for the rest of it.
        unread = head.status >= 400 and exchange.request.body.size > UPLOAD_BYTES
        if head.persistent and self.unsent is None and not self._surplus and not unread:
            self._reset()
            self.instance.keep(self)
        else:
            self.unsent = None
            self.transport.close()
        exchange.answer_ended(head, tail)

    # What the parser finds

    def on_message_begin(self) -> None:
        if self._ended:
            raise HttpParserError("more than one answer")
        self.head = AnswerHead()
        self.length = None

    def on_status(self, reason: bytes) -> None:
        self.head.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.headed:
            return
        lowered = name.lower()
        if lowered == b"set-cookie" and value.lstrip(b" \t=").startswith(HUB_COOKIES):
            return  # a browser would take it for the hub's own, which is called by the same name
        if lowered not in NOT_PASSED_ON:
            self.head.lines.append(name + b": " + value + b"\r\n")
            if lowered == b"content-type":
                self.head.content_type = value.lower()
            elif lowered == b"content-encoding":
                self.head.encoded = True
        elif lowered == b"content-length":
            self.length = self._left = int(value)
        elif lowered == b"transfer-encoding":
            self.head.chunked = True
            if value.strip().lower() != b"chunked":
                raise HttpParserError("an encoding that nobody asked for")

    def on_headers_complete(self) -> None:
        self.head.status = self._parser.get_status_code()
        self.head.persistent = self._parser.should_keep_alive()

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_body(self, data: bytes) -> None:
        if self.head.counts:
            self._tail = (self._tail + data)[-TAIL_BYTES:]
        if self.plain is not None:
            self.plain(data)

    def on_chunk_complete(self) -> None:
        self._chunk_ended = True

    def on_message_complete(self) -> None:
        if self.head.status >= 200:
            self._ended = True
