"""One request for a model, from the moment it is complete to its one end.

    waiting ──▶ serving ──▶ ended
       ▲           │
       └───────────┘  given back: the instance failed before any byte of an answer

Waiting: the hub has been asked, and grants, refuses or is told that the caller has gone. Serving: it counts as one of
its instance's requests, until a `Done` says that it does no more.
"""

import time
from typing import TYPE_CHECKING

from ostler.gateway.control import PEER, Arrived, Began, Cancelled, Done
from ostler.gateway.relay.answers import (
    CLOSE,
    LAST_CHUNK,
    SWITCHING,
    Refusal,
    chunk,
    error_message,
)
from ostler.gateway.relay.loading import Loading
from ostler.gateway.relay.tunnel import Tunnel
from ostler.gateway.relay.usage import tokens

if TYPE_CHECKING:
    import asyncio

    from ostler.gateway.relay.caller import Caller
    from ostler.gateway.relay.catalog import Key, Model
    from ostler.gateway.relay.heads import AnswerHead
    from ostler.gateway.relay.instances import Instance
    from ostler.gateway.relay.relay import Relay
    from ostler.gateway.relay.request import Request
    from ostler.gateway.relay.upstream import Upstream

CALLER_GONE = 499
CHAT = b"/v1/chat/completions"
MAX_COLLECTED_BYTES = 64 * 1024


class Exchange:
    stream = False
    asked = False
    waiting = False
    instance: "Instance | None" = None
    upstream: "Upstream | None" = None
    tunnel: Tunnel | None = None
    loading: Loading | None = None
    began = False
    """Something of the answer has been passed on: it can neither be refused nor given back any more."""
    status = 0
    collected: bytearray | None = None
    """The body of an answer that cannot be passed on, but says why."""
    bytes_out = 0
    mark = 0.0
    """With which it entered its instance's share of time."""
    _queue_s = 0.0
    _first_byte_s = 0.0
    _retried = False
    _given_back = False
    _drained = 0
    _timer: "asyncio.TimerHandle | None" = None

    def __init__(self, relay: "Relay", caller: "Caller", request: "Request", model: "Model", key: "Key") -> None:
        self.relay = relay
        self.id = next(relay.ids)
        self.caller: Caller | None = caller
        """None once it has hung up."""
        self.request = request
        self.model = model
        self.at = time.monotonic()
        self.key = key
        key.in_flight += 1

    # Waiting

    def start(self) -> None:
        """Through an open gate if there is one, else to the hub."""
        instance = self.model.with_room()
        if instance is not None:
            self.serve(instance)
        else:
            self._ask()

    def _ask(self, *, again: bool = False) -> None:
        self.asked = True
        self._wait()
        path = self.request.head.path.decode("latin-1")
        user, request_id = self.key.user, self.request.id.decode()
        self.relay.tell_use()  # the hub chooses by it whose room the model gets
        self.relay.send(Arrived(self.id, self.model.name, path, self.stream, user, self.at, again, request_id))

    def _wait(self) -> None:
        self.waiting = True
        self.model.waiting += 1
        self.relay.requests[self.id] = self
        if self.loading is not None:
            self.loading.resume()
        elif self.stream and (how := self.model.setup.loading_updates) and not self.request.head.old:
            as_text = how == "text" and self.request.head.path == CHAT
            self.loading = Loading(self, self.relay.limits, as_text=as_text)

    def _wait_no_more(self) -> None:
        self.waiting = False
        self.model.waiting -= 1
        if self.loading is not None:
            self.loading.pause()

    def tell(self, text: str) -> None:
        if self.loading is not None:
            self.loading.tell(text)

    def refuse(self, refusal: Refusal) -> None:
        """The hub's decision on a request that waits."""
        if self.waiting:
            self._wait_no_more()
            self._answer_with(refusal)
            self._leave()

    # Serving

    def serve(self, instance: "Instance") -> None:
        now = self.at
        if self.waiting:
            self._wait_no_more()
            now = time.monotonic()
            self._queue_s = now - self.at
        self.instance = instance
        self._retried = False
        instance.exchanges.add(self)
        self.mark = instance.sharing.enter(now)
        if not instance.works:
            self.relay.works(instance)
        self.relay.writes.under_way += 1
        if not self.asked:
            self.relay.used(instance)
        instance.begin(self)

    def sent_over(self, upstream: "Upstream") -> None:
        self.upstream = upstream
        if self.caller is not None and self.caller.full:
            upstream.hold(True)

    def room(self, there_is: bool) -> None:
        """The caller takes no more for now; or it does again."""
        if self.upstream is not None:
            self.upstream.hold(not there_is)

    def answer_begins(self, upstream: "Upstream") -> None:
        """The head of the answer is there: pass it on, and decide what becomes of the body."""
        caller = self.caller
        self.status = upstream.head.status
        self._first_byte_s = time.monotonic() - self.at
        if caller is None:
            upstream.write = self._drain
        elif self.loading is not None and self.loading.begun:
            self._continue_stream(upstream, caller)
        elif self.request.head.old and upstream.head.chunked:
            caller.write(self._head(upstream))
            upstream.plain = caller.write
        else:
            upstream.prefix = self._head(upstream)
            upstream.write = caller.write
            return
        self.passes_on(upstream)

    def passes_on(self, upstream: "Upstream") -> None:
        """From now on it can be taken back no more."""
        self.began = True
        if self.asked:
            self.relay.send(Began(self.id))
        if upstream.unsent is None:
            self.request.body.close()

    def _head(self, upstream: "Upstream") -> bytes:
        request, head = self.request, upstream.head
        if self.relay.stopping or (upstream.length is None and upstream.until_closed):
            request.persistent = False
        more = request.cors if request.persistent else request.cors + CLOSE
        start = head.start_for_page if request.cors else head.start
        if head.chunked and not request.head.old:
            return b"%bX-Request-Id: %b\r\nTransfer-Encoding: chunked\r\n%b\r\n" % (start, request.id, more)
        if upstream.length is not None:
            size = upstream.length
            return b"%bX-Request-Id: %b\r\nContent-Length: %d\r\n%b\r\n" % (start, request.id, size, more)
        return b"%bX-Request-Id: %b\r\n%b\r\n" % (start, request.id, more)

    def _continue_stream(self, upstream: "Upstream", caller: "Caller") -> None:
        """The caller has had its status and some comments: only events can follow."""
        if upstream.head.status != 200 or not upstream.head.is_stream or upstream.head.encoded:
            self.collected = bytearray()
            upstream.plain = self._collect
        elif upstream.head.chunked:
            upstream.write = caller.write
        else:
            upstream.write = lambda data: caller.write(chunk(data))

    def _in_chunks(self, upstream: "Upstream") -> bool:
        """As the caller gets it."""
        chunked = upstream.head.chunked and not self.request.head.old
        return chunked or (self.loading is not None and self.loading.begun)

    def _collect(self, data: bytes) -> None:
        if self.collected is not None and len(self.collected) < MAX_COLLECTED_BYTES:
            self.collected += data

    def answer_ended(self, head: "AnswerHead", tail: bytes) -> None:
        caller = self.caller
        if caller is not None and self.loading is not None and self.loading.begun:
            if self.collected is not None:
                self._answer_with(self._refusal_in(self.collected))
            elif not head.chunked:
                caller.write(LAST_CHUNK)
        self._done(self.status if caller is not None else CALLER_GONE, tokens=tokens(tail) if tail else (0, 0))

    def _refusal_in(self, answer: bytearray) -> Refusal:
        if self.status == 200:
            return Refusal(502, "upstream_error", "the model's server answered without the stream it was asked for")
        said = error_message(bytes(answer)) or f"the model's server answered {self.status}"
        return Refusal(self.status, "upstream_error", said)

    # Other ends

    def failed(self, error: str, *, sent: bool, again: bool = True) -> None:
        """The instance did not answer, or not to the end. `sent`: some of the request may have reached it."""
        upstream, self.upstream = self.upstream, None
        instance = self.instance
        assert instance is not None
        message = f"the model {self.model.name!r} did not answer: {error}{self._log_hint(instance)}"
        may_again = again and (self.request.replayable or not sent)
        if self.caller is None:
            self._done(CALLER_GONE, error)
        elif self.began:
            assert upstream is not None
            self._break_off(upstream, Refusal(502, "upstream_error", message))
            self._done(self.status, error)
        elif instance.unloaded and not self.asked:
            gone = f"{self.model.name!r} was unloaded; ask again to have it loaded anew"
            self._answer_with(Refusal(503, "unloaded", gone))
            self._done(503, error)
        elif may_again and upstream is not None and upstream.reused and not self._retried and instance.alive:
            self._retried = True
            instance.begin(self, fresh=True)
        elif may_again and not self._given_back and self.relay.linked:
            self._give_back(error)
        else:
            self._answer_with(Refusal(502, "upstream_error", message))
            self._done(502, error)

    def _log_hint(self, instance: "Instance") -> str:
        """The log itself may hold secrets. The log of a peer's server is the peer's."""
        return "" if instance.id.startswith(PEER) else f"; `ostler models logs {self.model.name}` shows its log"

    def _give_back(self, error: str) -> None:
        self._given_back = True
        was_asked = self.asked
        self._report(0, error, gave_back=True)
        if was_asked:
            self._wait()
        else:
            self._ask(again=True)

    def _break_off(self, upstream: "Upstream", refusal: Refusal) -> None:
        """In the middle of an answer. An event stream can still say why; nothing else can."""
        caller = self.caller
        assert caller is not None
        if self.collected is not None:
            self._answer_with(refusal)
            return
        events = self.request.error_events(refusal)
        if self.loading is not None and self.loading.begun and not upstream.head.chunked:
            end: bytes | None = chunk(events) + LAST_CHUNK
        elif upstream.head.chunked and self.request.head.old:
            end = events
        else:
            end = upstream.fill(events)
        if end is not None and upstream.head.is_stream and not upstream.head.encoded:
            self.request.persistent = self.request.persistent and (
                self._in_chunks(upstream) or upstream.length is not None
            )
            caller.write(end)
            return
        self.request.persistent = False
        if not self._in_chunks(upstream) and upstream.length is None:
            caller.reset()

    def gone(self) -> None:
        """The process that has it is no more."""
        if self.tunnel is not None:
            self.tunnel.cut()
            return
        if self.upstream is not None:
            self.upstream.drop()
        self.failed("its process ended", sent=self.upstream is not None)

    def cut(self, refusal: Refusal) -> None:
        """The hub or the end of the relay ends it, wherever it is."""
        if self.waiting:
            self._wait_no_more()
            self._answer_with(refusal)
            self.relay.send(Cancelled(self.id))
            self._leave()
        elif self.tunnel is not None:
            self.tunnel.cut()
        elif self.instance is not None:
            upstream, self.upstream = self.upstream, None
            if upstream is not None:
                upstream.drop()
            if self.caller is not None:
                if self.began and upstream is not None:
                    self._break_off(upstream, refusal)
                else:
                    self._answer_with(refusal)
            self._done(self.status if self.began else refusal.status, refusal.message)

    def hung_up(self) -> None:
        self.caller = None
        if self.waiting:
            self._wait_no_more()
            self.relay.send(Cancelled(self.id))
            self._leave()
            return
        upstream = self.upstream
        if upstream is not None and self.model.setup.on_client_abort == "drain":
            upstream.write = self._drain
            upstream.plain = None
            upstream.hold(False)
            self._timer = self.relay.loop.call_later(self.relay.limits.drain_s, self._drained_enough)
            return
        self.upstream = None
        if upstream is not None:
            upstream.drop()
        self._done(CALLER_GONE, "the caller hung up")

    def _drain(self, data: bytes) -> None:
        self._drained += len(data)
        if self._drained > self.relay.limits.drain_bytes:
            self.relay.loop.call_soon(self._drained_enough)

    def _drained_enough(self) -> None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None and self.instance is not None:
            upstream.drop()
            self._done(CALLER_GONE, "the caller hung up")

    # Other protocols

    def switches(self, upstream: "Upstream", first: bytes) -> None:
        if self.caller is None:
            upstream.drop()
            self._done(CALLER_GONE, "the caller hung up")
            return
        self.status = 101
        self.began = True
        if self.asked:
            self.relay.send(Began(self.id))
        self.caller.write(self._switching(upstream) + first)
        self.relay.writes.flush()
        self.tunnel = Tunnel(self.caller, upstream, self._tunnel_ended)
        if self.request.rest:
            upstream.transport.write(self.request.rest)

    def _switching(self, upstream: "Upstream") -> bytes:
        lines = b"".join([*upstream.head.lines, self.request.answer_lines])
        return SWITCHING % (lines, self.request.head.upgrade)

    def _tunnel_ended(self, bytes_out: int) -> None:
        self.bytes_out = bytes_out
        self.tunnel = None
        self.request.persistent = False
        self._done(101)

    # Ends

    def _answer_with(self, refusal: Refusal) -> None:
        caller = self.caller
        assert caller is not None
        if self.loading is not None and self.loading.begun:
            caller.write(chunk(self.request.error_events(refusal)) + LAST_CHUNK)
            return
        self.request.persistent = self.request.persistent and not self.relay.stopping
        caller.write(self.request.refusal_page(refusal))

    def _done(self, status: int, error: str = "", tokens: tuple[int, int] = (0, 0)) -> None:
        self._report(status, error, tokens)
        self._leave()

    def _report(
        self, status: int, error: str = "", tokens: tuple[int, int] = (0, 0), *, gave_back: bool = False
    ) -> None:
        """It is none of its instance's requests any more."""
        instance = self.instance
        assert instance is not None
        self.instance = self.upstream = None
        now = time.monotonic()
        instance.sharing.leave(self.key.user, self.mark, now)
        done = Done(
            self.id,
            instance.id,
            self.model.name,
            status,
            error,
            *tokens,
            self._first_byte_s,
            now - self.at,
            self.request.body.size,
            self.bytes_out,
            gave_back,
            self.key.user,
            self.asked,
            self._queue_s,
            self.request.id.decode(),
        )
        self.relay.released(self, instance, done)

    def _leave(self) -> None:
        self.key.in_flight -= 1
        if self.asked:
            self.relay.requests.pop(self.id, None)
        self.request.body.close()
        if self._timer is not None:
            self._timer.cancel()
        caller, self.caller = self.caller, None
        if caller is not None:
            caller.answered()
