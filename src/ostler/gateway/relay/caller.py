"""A caller's connection: reads requests, one answered after the other in the order they came.

What comes while a request is being answered is kept, unread, up to a limit: a hang-up is noticed only while reading.
"""

import asyncio
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from ostler.gateway.relay.answers import CONTINUE, Refusal
from ostler.gateway.relay.form import BadForm
from ostler.gateway.relay.request import OURS, Head, Request, bad_request, too_large

if TYPE_CHECKING:
    from ostler.gateway.relay.catalog import Key
    from ostler.gateway.relay.relay import Relay

STOPPING = Refusal(503, "shutting_down", "the gateway is being stopped; try again in a moment", None, 5)
AT_ONCE = struct.pack("ii", 1, 0)
NO_TIME = Refusal(408, "timeout", "the request did not arrive in time; send it again")


class Answering(Protocol):
    """Whoever answers the request at the head of the line."""

    def hung_up(self) -> None: ...
    def room(self, there_is: bool) -> None: ...
    def cut(self, refusal: Refusal) -> None: ...


class Caller(asyncio.Protocol):
    transport: asyncio.Transport
    local = ""
    """The address at which it came in."""

    def __init__(self, relay: "Relay") -> None:
        self.full = False
        """It does not read as fast as it is written to."""
        self._relay = relay
        self._writes = relay.writes
        self._limits = relay.limits
        self._parser = HttpRequestParser(self)
        self._incoming: Request | None = None
        self._line: deque[Request] = deque()
        """Requests that are complete, or refused before they were."""
        self._current: Request | None = None
        self.answering: Answering | None = None
        self.key: Key | None = None
        """With which its last request came."""
        self._ahead = b""
        self._held = False
        self._advancing = False
        self._deaf = False
        """Nothing that comes now is looked at: the connection ends with the answer to the last request in line."""
        self._lingering = False
        self._head_bytes = 0
        self._since = relay.loop.time()
        """When the present silence, head or body began."""
        self._unread = 0
        self._unread_since = 0.0

    # Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("sockname")
        self.local = str(name[0]) if isinstance(name, tuple) else ""
        self._relay.callers.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._relay.left(self)
        self._deaf = True
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.hung_up()
        for request in (self._incoming, *self._line):
            if request is not None:
                request.body.close()
        self._line.clear()
        self._ahead = b""

    def pause_writing(self) -> None:
        self.full = True
        if self.answering is not None:
            self.answering.room(False)

    def resume_writing(self) -> None:
        self.full = False
        if self.answering is not None:
            self.answering.room(True)
        else:
            self._advance()

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._keep_for_tunnel(data)
            return
        if self._current is None and not self._line:
            begins = self._incoming is None and not self.full
            if begins and (request := self._seen_before(data)) is not None:
                self._begin(request)
                return
            self._feed(data)
            if begins and self._line:
                self._remember(data)
            self._advance()
            return
        self._ahead += data
        if len(self._ahead) > self._limits.ahead_bytes and not self._held:
            self._held = True
            self.transport.pause_reading()

    def _seen_before(self, data: bytes) -> Request | None:
        """The request that is all of these bytes, if its head is one that came before, and is not refused for it."""
        found = self._relay.heads.find(data)
        if found is None:
            return None
        head, body = found
        request = Request(self._relay.spool, head)
        request.length = len(body)
        if self._relay.look_at_head(request, self.local) is not None:
            return None
        request.complete = True
        try:
            request.body.add(body)
        except OSError:
            request.body.close()
            return None
        return request

    def _remember(self, data: bytes) -> None:
        """Other requests may have the same head, if all that was fed is one request that nothing is special about."""
        request = self._line[0]
        if request.refusal is None and request.form is None and not request.head.expects:
            self._relay.heads.keep(data, request.body.size, request.head)

    def _keep_for_tunnel(self, data: bytes) -> None:
        """Who asks for another protocol may speak it before the answer."""
        if self._current is not None and self._current.head.upgrades:
            self._current.rest += data
            if len(self._current.rest) > self._limits.ahead_bytes:
                self.transport.abort()

    def _feed(self, data: bytes) -> None:
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except HttpParserError as error:
            if not (self._line and not self._line[-1].persistent):
                self._refuse_all(bad_request(f"the request is not HTTP: {error}"))
        incoming = self._incoming
        if incoming is None or self._deaf:
            return
        if incoming.refusal is None and not incoming.headed and self._head_bytes > self._limits.head_bytes:
            incoming.refusal = Refusal(431, "head_too_large", "the head of the request is too large")
        if incoming.refusal is not None:
            self._line_up_last(incoming)

    def _upgrade(self, rest: bytes) -> None:
        """The parser takes all that follows for another protocol's. Where that is not so, a new parser reads on."""
        request = self._line[-1] if self._line else None
        if request is not None and request.head.upgrades:
            request.rest = rest
            self._deaf = True
            return
        incoming = self._incoming
        if incoming is None or incoming.refusal is not None:
            return
        self._parser = HttpRequestParser(self)
        framing = b"Transfer-Encoding: chunked" if incoming.head.chunked else b"Content-Length: %d" % incoming.length
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        if rest:
            self._feed(rest)

    def _refuse_all(self, refusal: Refusal) -> None:
        request = self._incoming or Request(self._relay.spool, Head())
        request.refusal = refusal
        self._line_up_last(request)

    def _line_up_last(self, request: Request) -> None:
        """It is refused before all of it is there: where the next one begins is not known, or not worth the wait."""
        self._deaf = True
        self._incoming = None
        request.persistent = False
        self._line.append(request)

    # What the parser finds

    def on_message_begin(self) -> None:
        if self._incoming is None and not self._deaf:
            self._incoming = Request(self._relay.spool, Head())
            self._since = self._relay.loop.time()

    def on_url(self, url: bytes) -> None:
        request = self._incoming
        if request is not None and not request.headed:
            request.head.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._incoming
        if request is None or request.headed:
            return
        lowered = name.lower()
        if lowered not in OURS:
            request.head.lines.append(name + b": " + value + b"\r\n")
        elif lowered == b"content-length":
            request.length = int(value)
        else:
            request.head.own_header(lowered, value)

    def on_headers_complete(self) -> None:
        request = self._incoming
        if request is None or request.headed:
            return
        parser = self._parser
        version = parser.get_http_version()
        request.head_is_complete(
            parser.get_method(),
            version,
            persistent=parser.should_keep_alive() and version == "1.1",
            upgrades=parser.should_upgrade(),
        )
        self._since = self._relay.loop.time()
        request.refusal = self._relay.look_at_head(request, self.local)
        if request.refusal is None and self._head_bytes > self._limits.head_bytes:
            self._check_head_size(request)
        if request.refusal is None and request.has_body:
            request.expect_form()
            if request.head.expects and self._current is None and not self._line:
                self.write(CONTINUE)
        self._head_bytes = 0

    def _check_head_size(self, request: Request) -> None:
        """What was fed is more than a head may have; some of it may be body, or the request before."""
        if len(request.target) + sum(map(len, request.head.lines)) > self._limits.head_bytes:
            request.refusal = Refusal(431, "head_too_large", "the head of the request is too large")

    def on_body(self, data: bytes) -> None:
        request = self._incoming
        if request is None or request.refusal is not None:
            return
        if request.body.size + len(data) > self._relay.catalog.max_body_bytes:
            request.refusal = too_large(self._relay.catalog.max_body_bytes)
            return
        try:
            request.body.add(data)
            if request.form is not None:
                request.form.feed(data)
        except BadForm as error:
            request.refusal = bad_request(str(error))
        except OSError as error:
            request.refusal = Refusal(503, "no_room", f"the body cannot be kept: {error.strerror}", None, 5)

    def on_message_complete(self) -> None:
        request = self._incoming
        if request is None:
            return
        if self._parser.should_upgrade() and not request.head.upgrades:
            return  # the parser has not looked for its body
        self._head_bytes = 0
        if request.refusal is not None and not request.persistent:
            self._line_up_last(request)
            return
        request.complete = True
        self._incoming = None
        self._line.append(request)

    # Answering

    def write(self, data: bytes) -> None:
        self._writes.add(self.transport, data)

    def _advance(self) -> None:
        """The next request in line, until one has to wait for its answer."""
        if self._advancing:
            return
        self._advancing = True
        while self._current is None and not self.full and not self._lingering:
            if self._line:
                self._begin(self._line.popleft())
            elif self._ahead and not self._deaf:
                data, self._ahead = self._ahead, b""
                self._feed(data)
            else:
                break
        if self._held and not self._ahead and not self.transport.is_closing():
            self._held = False
            self.transport.resume_reading()
        self._advancing = False

    def _begin(self, request: Request) -> None:
        self._current = request
        self.key = request.key
        if request.refusal is None:
            self._relay.begin(self, request)
        else:
            self.refuse(request, request.refusal)

    def refuse(self, request: Request, refusal: Refusal) -> None:
        """The answer to a request that goes nowhere."""
        request.persistent = request.persistent and not self._relay.stopping
        self.write(request.refusal_page(refusal))
        request.body.close()
        self.answered()

    def answered(self) -> None:
        """All of the answer to the current request has been written."""
        request, self._current = self._current, None
        self.answering = None
        self._since = self._relay.loop.time()
        if request is None or not request.persistent:
            self._end(complete=request is not None and request.complete)
        else:
            if self._line or self._ahead or self._held:
                self._advance()
            if self._relay.stopping:
                self.stop()

    def reset(self) -> None:
        """End the connection so that what was sent does not look complete."""
        self._writes.flush()
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self.transport.abort()

    def _end(self, *, complete: bool) -> None:
        self._deaf = True
        if self.transport.is_closing():
            return
        self._writes.flush()
        if complete and not self._ahead:
            self.transport.close()
            return
        # Closed with bytes unread, the other side would get a reset, and might never see the answer.
        self._lingering = True
        self._ahead = b""
        if self._held:
            self._held = False
            self.transport.resume_reading()
        if self.transport.can_write_eof():  # TLS has no such end: the answer has said that the connection has
            self.transport.write_eof()

    def expel(self, refusal: Refusal) -> None:
        """Its key is good no more: what is being answered ends here, and the connection with it."""
        self._deaf = True
        for request in self._line:
            request.body.close()
        self._line.clear()
        if self._current is not None:
            self._current.persistent = False
        if self.answering is not None:
            self.answering.cut(refusal)
        self._writes.flush()
        self.transport.close()
        self._relay.loop.call_later(self._limits.linger_s, self.transport.abort)

    def hand_over(self, protocol: asyncio.Protocol, rest: bytes) -> None:
        """The connection is another's from now on."""
        self._deaf = True
        self._relay.left(self)
        self._writes.flush()
        self.transport.set_protocol(protocol)
        if rest:
            protocol.data_received(rest)

    # Patience

    def look(self, now: float) -> None:
        """Called every now and then: end what has lasted too long."""
        silence_s = now - self._since
        limits = self._limits
        if self._stalled(now) or (self._lingering and silence_s > limits.linger_s):
            self.transport.abort()
        elif self._current is not None or self._lingering or self.transport.is_closing():
            return
        elif self._incoming is None:
            if silence_s > limits.idle_s:
                self.transport.close()
        elif self._too_slow(self._incoming, silence_s):
            self._refuse_all(NO_TIME)
            self._advance()

    def _too_slow(self, request: Request, silence_s: float) -> bool:
        if not request.headed:
            return silence_s > self._limits.head_s
        return silence_s > self._limits.body_s + request.body.size / self._limits.body_bytes_per_s

    def _stalled(self, now: float) -> bool:
        unread = self.transport.get_write_buffer_size()
        if unread == 0 or unread != self._unread:
            self._unread = unread
            self._unread_since = now
            return False
        return now - self._unread_since > self._limits.stall_s

    def stop(self) -> None:
        """Nobody is let in any more: a connection without a request ends, one with a request ends after it."""
        if self._current is not None or self._line or self.transport.is_closing():
            return
        self._deaf = True
        if self._incoming is None:
            self._writes.flush()
            self.transport.close()
        else:
            self._refuse_all(STOPPING)
            self._advance()
