"""What is to be done for the gateway. Plain data, in the order in which it was decided."""

import msgspec


class StartLoad(msgspec.Struct):
    """Make the model ready once those to evict are gone; some of them may be stopping already."""

    load: int
    model: str
    evict: list[str]


class Grant(msgspec.Struct):
    """Send the request to the model, which is ready."""

    request: int
    model: str


class Refuse(msgspec.Struct):
    """The final answer to a request that is not served."""

    request: int
    code: str
    message: str
    status: int
    retry_after_s: float | None = None


class StopModels(msgspec.Struct):
    """Stop these processes now, and say `Stopped` for each, also where there is none."""

    models: list[str]
    reason: str


class Tell(msgspec.Struct):
    """A request waits: its place in the queue, from 1; 0: its model is being loaded."""

    request: int
    position: int
    note: str


class OpenGate(msgspec.Struct):
    """Whoever carries the bytes may serve requests for this model without asking."""

    model: str


class CloseGate(msgspec.Struct):
    """Ask again for each request; say `GateDrained` when those that went through are done. A process that is stopped
    has no gate any more, and nothing is said of it."""

    model: str


class Unloaded(msgspec.Struct):
    """To whoever asked with this ref: these are gone."""

    ref: int
    models: list[str]


Effect = StartLoad | Grant | Refuse | StopModels | Tell | OpenGate | CloseGate | Unloaded
