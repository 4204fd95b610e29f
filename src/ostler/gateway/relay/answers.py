"""The relay's own answers: errors as OpenAI and Anthropic write them, small answers, comments and errors in streams."""

import math
import time
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from ostler.domain.finite import encode

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UNBUFFERED = b"X-Accel-Buffering: no\r\n"
"""nginx, in front of the gateway, keeps a stream back until its buffer is full unless the answer has this header."""
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    + UNBUFFERED
    + b"Transfer-Encoding: chunked\r\n%b%b\r\n"
)
CLOSE = b"Connection: close\r\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\n%bConnection: Upgrade\r\nUpgrade: %b\r\n\r\n"
CORS = (
    b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\nAccess-Control-Expose-Headers: X-Request-Id, Retry-After\r\n"
)
PREFLIGHT = (
    b"HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Methods: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"
    b"Access-Control-Allow-Headers: %b\r\nAccess-Control-Max-Age: 600\r\n%b%b\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
DONE_EVENT = b"data: [DONE]\n\n"


class Refusal(NamedTuple):
    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    def document(self) -> dict[str, Any]:
        kind = TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic_document(self) -> dict[str, Any]:
        """As clients of `/v1/messages` read it."""
        kind = ANTHROPIC_TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def page(
    status: int,
    body: bytes,
    content_type: bytes = b"application/json",
    *,
    more_lines: bytes = b"",
    close: bool = False,
    bodiless: bool = False,
) -> bytes:
    """A whole answer. `bodiless` is for HEAD: the head that the body would have had."""
    head = b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n" % (
        status,
        REASONS.get(status, b"Unknown"),
        content_type,
        len(body),
        more_lines,
        CLOSE if close else b"",
    )
    return head if bodiless else head + body


def refusal_lines(refusal: Refusal) -> bytes:
    """The headers that say what to do about a refusal."""
    lines = b"WWW-Authenticate: Bearer\r\n" if refusal.status == 401 else b""
    if refusal.retry_after_s is not None:
        lines += b"Retry-After: %d\r\n" % max(1, math.ceil(refusal.retry_after_s))
    return lines


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def comment(text: str) -> bytes:
    """A line that every reader of event streams skips."""
    return b": " + " ".join(text.split()).encode(errors="replace") + b"\n\n"


def reasoning(request_id: str, model: str, text: str) -> bytes:
    """An event of a chat that shows this text where it shows what a model thinks."""
    # No role: clients that add up all pieces would have it twice, once more from the model.
    choice = {"index": 0, "delta": {"reasoning_content": text}, "finish_reason": None}
    chat = {"id": f"chatcmpl-{request_id}", "object": "chat.completion.chunk", "created": int(time.time())}
    return b"data: " + encode(chat | {"model": model, "choices": [choice]}) + b"\n\n"


def error_events(refusal: Refusal, *, anthropic: bool = False) -> bytes:
    """An error where the status has been sent already. Whatever line was begun before it is ended first."""
    if anthropic:
        return b"\n\nevent: error\ndata: " + encode(refusal.anthropic_document()) + b"\n\n"
    return b"\n\ndata: " + encode(refusal.document()) + b"\n\n" + DONE_EVENT


def error_message(body: bytes) -> str:
    """What a server's own error says, as far as that can be told."""
    try:
        said = msgspec.json.decode(body)["error"]
        return str(said["message"] if isinstance(said, dict) else said)
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError):
        return body.decode(errors="replace").strip()[:1000]
