"""A request for one of the hub's own pages: handed over whole, answered at once or piece by piece."""

from typing import TYPE_CHECKING

from ostler.gateway.control import Answer, Asked, Cancelled
from ostler.gateway.relay.answers import CLOSE, LAST_CHUNK, REASONS, Refusal, chunk

if TYPE_CHECKING:
    from ostler.gateway.relay.caller import Caller
    from ostler.gateway.relay.catalog import Key
    from ostler.gateway.relay.relay import Relay
    from ostler.gateway.relay.request import Request

MAX_BODY_BYTES = 1024 * 1024


class Inquiry:
    def __init__(self, relay: "Relay", caller: "Caller", request: "Request", key: "Key") -> None:
        self._relay = relay
        self._caller: Caller | None = caller
        self._request = request
        self._begun = False
        self._chunked = False
        self._id = next(relay.ids)
        head = request.head
        relay.requests[self._id] = self
        relay.send(
            Asked(
                self._id,
                head.method.decode(),
                head.path.decode("latin-1"),
                head.query.decode("latin-1"),
                [_header(line) for line in head.lines],
                bytes(request.body.contents()),
                key.user,
                key.role,
            )
        )
        request.body.close()

    def answer(self, answer: Answer) -> None:
        caller = self._caller
        assert caller is not None
        if not self._begun:
            self._begin(caller, answer)
        if answer.body and self._request.head.method != b"HEAD":
            caller.write(chunk(answer.body) if self._chunked else answer.body)
        if not answer.more:
            if self._chunked:
                caller.write(LAST_CHUNK)
            self._leave()
        elif caller.transport.get_write_buffer_size() > self._relay.limits.unread_bytes:
            caller.transport.abort()

    def _begin(self, caller: "Caller", answer: Answer) -> None:
        self._begun = True
        request, head = self._request, self._request.head
        request.persistent = request.persistent and not self._relay.stopping and not (answer.more and head.old)
        lines = [b"HTTP/1.1 %d %b\r\n" % (answer.status, REASONS.get(answer.status, b"Unknown"))]
        lines += [f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in answer.headers]
        if not answer.more:
            lines.append(b"Content-Length: %d\r\n" % len(answer.body))
        elif not head.old and head.method != b"HEAD":
            self._chunked = True
            lines.append(b"Transfer-Encoding: chunked\r\n")
        caller.write(b"".join([*lines, request.answer_lines, b"" if request.persistent else CLOSE, b"\r\n"]))

    def refuse(self, refusal: Refusal) -> None:
        caller = self._caller
        assert caller is not None
        if self._begun:
            caller.transport.abort()
            return
        request = self._request
        request.persistent = request.persistent and not self._relay.stopping
        caller.write(request.refusal_page(refusal))
        self._leave()

    def cut(self, refusal: Refusal) -> None:
        self._relay.send(Cancelled(self._id))
        self.refuse(refusal)

    def hung_up(self) -> None:
        self._relay.send(Cancelled(self._id))
        self._caller = None
        self._leave()

    def room(self, there_is: bool) -> None:
        """Nothing can slow the hub down; who falls too far behind is let go."""

    def _leave(self) -> None:
        self._relay.requests.pop(self._id, None)
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.answered()


def _header(line: bytes) -> tuple[str, str]:
    name, _, value = line.decode("latin-1").partition(": ")
    return name, value.rstrip("\r\n")
