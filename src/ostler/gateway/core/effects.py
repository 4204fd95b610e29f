"""What is to be done for the gateway. Plain data, in the order in which it was decided. A process is named by the load
that began it: of a model there may be several."""

import msgspec


class StartLoad(msgspec.Struct):
    """Make a process of the model ready once those to evict are gone; some of them may be stopping already."""

    load: int
    model: str
    evict: list[int]
    load_s: dict[str, float] = {}
    """How long its loads take by place, as far as that was seen: among places with room, the quickest."""


class Grant(msgspec.Struct):
    """Send the request to this process, which is ready."""

    request: int
    load: int


class Refuse(msgspec.Struct):
    """The final answer to a request that is not served."""

    request: int
    code: str
    message: str
    status: int
    retry_after_s: float | None = None


class StopProcesses(msgspec.Struct):
    """Stop these now, and say `Stopped` for each, also where there is none."""

    loads: list[int]
    reason: str


class Tell(msgspec.Struct):
    """A request waits: its place in the queue, from 1; 0: its model is being loaded."""

    request: int
    position: int
    note: str


class OpenGate(msgspec.Struct):
    """Whoever carries the bytes may serve requests for its model there without asking."""

    load: int


class CloseGate(msgspec.Struct):
    """Ask again for each request; say `GateDrained` when those that went through are done. A process that is stopped
    has no gate any more, and nothing is said of it."""

    load: int


class WatchGate(msgspec.Struct):
    """Whether the use of this process is reported as soon as nothing goes through its open gate any more: another model
    waits for its room."""

    load: int
    watched: bool


class Unloaded(msgspec.Struct):
    """To whoever asked with this ref: these are gone."""

    ref: int
    models: list[str]


Effect = StartLoad | Grant | Refuse | StopProcesses | Tell | OpenGate | CloseGate | WatchGate | Unloaded
