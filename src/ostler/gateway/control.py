"""What the hub and its relay say to each other, and its bytes.

One stream socket. A frame is a length (four bytes, big-endian) and a msgpack array of messages; each message is an
array that begins with its name. Fields are only ever added at the end, with a default.

A request is known by a number of the relay's. What the hub has been told of by `Arrived` or `Asked` ends once: by a
`Done` or a `Cancelled` from the relay, or by the hub's own `Refuse` or last `Answer`. After a `Done` with `gave_back`
it goes on: the hub grants it again, or refuses it. A request that was served without asking and is given back is
announced, by an `Arrived` with `again`. A `Grant` and a `Cancelled` may cross: the grant then counts for nothing.
"""

from collections.abc import Iterable
from typing import Any, Generic, Literal, TypeVar

import msgspec


class Message(msgspec.Struct, array_like=True, tag=True):
    pass


# What is configured


class Filters(msgspec.Struct, frozen=True):
    """What is done to the fields of a JSON body before the model's server sees it. `model` is never touched by them."""

    strip: list[str] = []
    set: dict[str, Any] = {}


LoadingUpdates = bool | Literal["text"]
"""What a caller who streams receives while the model loads: nothing, comments (True), or text that a chat shows."""


class ModelSetup(msgspec.Struct, frozen=True):
    aliases: list[str] = []
    upstream_name: str = ""
    """What the model's own server calls it, where that is not what callers call it."""
    filters: Filters = Filters()
    unlisted: bool = False
    on_client_abort: Literal["cancel", "drain"] = "cancel"
    loading_updates: LoadingUpdates = False
    document: dict[str, Any] = {}
    """Its part of `GET /v1/models`; `id`, `object` and `status` are the relay's."""


class KeyLimits(msgspec.Struct, frozen=True):
    in_flight: int | None = None
    """Requests at a time, waiting ones among them."""


class KeySetup(msgspec.Struct, frozen=True):
    digest: str
    """SHA-256 of the secret, in hex."""
    user: str
    role: str
    """Of a `worker` it opens tunnels, and nothing else; those of the worker that is named as its user, or of any."""
    limits: KeyLimits = KeyLimits()


class Way(msgspec.Struct, frozen=True, array_like=True):
    """How an instance is reached, where a connection to its host and port is not all there is to it."""

    tunnel: bool = False
    """Over connections that its worker opens when asked; host and port are what its server goes by there."""
    tls: bool = False
    """The host must show a certificate for its name."""
    prefix: str = ""
    """Put before the path of every request."""
    api_key: str = ""
    """Shown as `Authorization: Bearer`."""
    worker: str = ""
    """Whose tunnels these are: another's token opens none of them."""


STRAIGHT = Way()
PEER = "peer-"
"""How the names of peers begin, as instances; those of models' jobs begin otherwise."""


# From the hub


class Setup(Message):
    """The configuration. Sent first, and again whenever it changes; callers are let in from the first one on."""

    models: dict[str, ModelSetup]
    keys: list[KeySetup]
    max_body_bytes: int
    version: str = ""
    names: list[str] = []
    """What the gateway is called, beside the machine's own names for itself: names, addresses or URLs."""
    cors_origins: list[str] = []
    """Whose pages may call the gateway from browsers, beside its own; `*`: everybody's."""


class Open(Message):
    """This instance may be used without asking, by so many requests at a time: None, any number; 0, it is loaded, but
    each request is asked for. Said again, it changes the number; said after `Close`, it takes that back."""

    instance: str
    model: str
    host: str
    port: int
    concurrency: int | None = None
    way: Way = STRAIGHT
    watched: bool = False
    """Another model waits for its room: the end of its last request is reported at once."""


class Close(Message):
    """No request more for this instance but by a grant. Answered by `Drained` when none is left there."""

    instance: str
    unloaded: bool = False
    """Its process is ended for good: who went there without asking and has no byte yet does not have it loaded anew."""


class Gone(Message):
    """The instance's process is no more, and the relay forgets it. Who waited for its answer is given back or told."""

    instance: str


class Grant(Message):
    request: int
    instance: str
    host: str
    port: int
    way: Way = STRAIGHT


class NoTunnel(Message):
    """The tunnel with this key will not come."""

    key: str
    reason: str


class Refuse(Message):
    request: int
    status: int
    code: str
    message: str
    retry_after_s: float | None = None


class Tell(Message):
    """What a waiting caller who streams is told: `: loading <text>`."""

    request: int
    text: str


class Abort(Message):
    """End this request, wherever it is. Answered by its `Done` or `Cancelled`."""

    request: int


class Answer(Message):
    """The answer to an `Asked`. With `more`, others follow that add to its body; of those only the body counts."""

    request: int
    status: int
    headers: list[tuple[str, str]] = []
    body: bytes = b""
    more: bool = False


class Stop(Message):
    """Let nobody in; what is under way may end within so many seconds; then go."""

    drain_s: float = 0.0


# From the relay


class Hello(Message):
    version: str
    host: str
    port: int
    """Where it listens: the port that was found, if none was named."""


class Arrived(Message):
    """No open instance of this model has room: decide."""

    request: int
    model: str
    path: str
    stream: bool
    user: str
    at: float
    """When it was complete, on this machine's monotonic clock."""
    again: bool = False
    """It has been served without asking, and given back."""
    request_id: str = ""
    """Its `X-Request-Id`."""


class Cancelled(Message):
    """The caller hung up, or `Abort` came, before a grant or an answer did."""

    request: int


class Began(Message):
    """The first byte of the answer to a request that was granted has been passed on."""

    request: int


class Done(Message):
    """A request has left its instance. Also of those that were served without asking."""

    request: int
    instance: str
    model: str
    status: int
    """As the caller saw it; 499 if the caller had gone, 0 if it was given back."""
    error: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_byte_s: float = 0.0
    total_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    gave_back: bool = False
    """The instance failed before any byte: the request is the hub's again, to grant once more or to refuse."""
    user: str = ""
    asked: bool = True
    """It had been granted. False: it went through an open gate."""
    queue_s: float = 0.0
    """From its arrival until it was last sent on to an instance."""
    request_id: str = ""
    """Its `X-Request-Id`."""


class Drained(Message):
    instance: str


class Used(Message):
    """How much an instance is used without asking; at most every 100 ms, and only when that changed."""

    instance: str
    in_flight: int
    """All that are there now, granted ones too."""
    served: int
    """All that have ended there since the relay began."""


class Worked(Message):
    """For how many seconds an instance has worked for each user since the last such word. Several requests at a time
    share the time equally. Sent at most every 10 s, and when the instance has drained or is gone."""

    instance: str
    seconds: dict[str, float]
    last: bool = False
    """The instance is gone."""


class NeedTunnel(Message):
    """Have the instance's worker open `GET /tunnel/{key}` here, and join it to the port of its server. Each key is good
    for one connection, and not for long."""

    instance: str
    key: str


class Asked(Message):
    """A request for a page of the hub's own."""

    request: int
    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes
    user: str
    role: str


ToRelay = Setup | Open | Close | Gone | Grant | NoTunnel | Refuse | Tell | Abort | Answer | Stop
ToHub = Hello | Arrived | Cancelled | Began | Done | Drained | Used | Worked | NeedTunnel | Asked
M = TypeVar("M")

_encode = msgspec.msgpack.Encoder().encode
_SIZE = 4


def frame(messages: Iterable[ToRelay] | Iterable[ToHub]) -> bytes:
    """These messages, as one frame."""
    body = _encode(list(messages))
    return len(body).to_bytes(_SIZE, "big") + body


class Frames(Generic[M]):
    """Messages out of the bytes of a link, however those are cut."""

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """What is complete now. Raises `msgspec.DecodeError` for bytes that are no messages."""
        rest = self._rest
        rest += data
        messages: list[M] = []
        at = 0
        while len(rest) - at >= _SIZE:
            end = at + _SIZE + int.from_bytes(rest[at : at + _SIZE], "big")
            if end > len(rest):
                break
            messages += self._decode(memoryview(rest)[at + _SIZE : end].tobytes())
            at = end
        del rest[:at]
        return messages


def frames_to_relay() -> Frames[ToRelay]:
    return Frames(ToRelay)


def frames_to_hub() -> Frames[ToHub]:
    return Frames(ToHub)
