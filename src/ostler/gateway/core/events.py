"""What has happened to the gateway. Plain data; the loop stamps each with the time at which it is stepped.

What the machines count on: every `StartLoad` is answered by one `LoadDone` (late, or never, when it was abandoned),
every process that was told to stop by one `Stopped`, every `Grant` by one of `ServeDone`, `CallerGone` and
`RequestFailed`. A process is named by the load that began it.
"""

import msgspec

from ostler.gateway.core.learnt import LoadTimes
from ostler.gateway.core.models import Config


class RequestArrived(msgspec.Struct):
    request: int
    model: str
    again: bool = False
    """It went through an open gate, and its process failed it before the first byte."""
    user: str = ""
    """Whose it is. Of those who wait for the same model the user who has the fewest requests served is next."""


class RequestCancelled(msgspec.Struct):
    """Its caller has left. After the grant this changes nothing: the end of the serving is told by itself."""

    request: int


class CallerGone(msgspec.Struct):
    """A grant found nobody: it counts for nothing."""

    request: int


class ServeDone(msgspec.Struct):
    request: int


class RequestFailed(msgspec.Struct):
    """The process ended or hung up before the first byte of the answer. A request is tried again once; one that has
    received a byte is a `ServeDone`, however it ended."""

    request: int


class LoadDone(msgspec.Struct):
    """The process is ready; or, with an error, nothing of it is left. Known by its token: the end of a load that was
    abandoned changes nothing."""

    load: int
    error: str = ""
    no_room: bool = False
    """The room it was promised is gone, with its worker perhaps: nobody's fault, those who wait go on waiting."""
    place: str = ""
    """The worker it runs on, where that is known."""


class Stopped(msgspec.Struct):
    """A process is gone and its room is free: evicted, unloaded, yielded, or, with an error, crashed. A word about one
    that is not known (any more) says that there is room."""

    load: int
    error: str = ""
    lost: bool = False
    """Its worker left or was lost: the model is not to blame, and is wanted again."""


class PlaceChanged(msgspec.Struct):
    """The worker of a process leaves, comes back, or cannot be reached."""

    load: int
    home: str


class ModelFound(msgspec.Struct):
    """A process of the model runs already and is ready: the gateway comes back to it."""

    model: str
    digest: str = ""
    load: int = 0
    """By which it will be known; below zero, where the machine makes none. 0: the machine makes one."""
    place: str = ""


class GateUsed(msgspec.Struct):
    """What went through an open gate since the last such word."""

    load: int
    arrived: int
    in_flight: int


class GateDrained(msgspec.Struct):
    """The gate is closed, and nothing that went through it is left there."""

    load: int


class UnloadAsked(msgspec.Struct):
    """Stop these models, all of them if none is named. Answered by `Unloaded` when they are gone."""

    models: list[str]
    ref: int


class PreloadAsked(msgspec.Struct):
    """Load these when there is room that nobody else uses or waits for."""

    models: list[str]


class YieldAsked(msgspec.Struct):
    """A job wants the room of this process: it is stopped when it is idle, and takes no new requests until then."""

    load: int


class RoomChanged(msgspec.Struct):
    """The ledger has other room than before: look again."""


class LoadTimesKnown(msgspec.Struct):
    """What an earlier gateway had learnt, by model."""

    times: dict[str, LoadTimes]


class ConfigChanged(msgspec.Struct):
    """A model that changed is drained and stopped, one that vanished as well; the others go on."""

    config: Config


class TimePassed(msgspec.Struct):
    """What `due()` named has come."""


class ShutdownAsked(msgspec.Struct):
    pass


Event = (
    RequestArrived
    | RequestCancelled
    | CallerGone
    | ServeDone
    | RequestFailed
    | LoadDone
    | Stopped
    | ModelFound
    | PlaceChanged
    | GateUsed
    | GateDrained
    | UnloadAsked
    | PreloadAsked
    | YieldAsked
    | RoomChanged
    | LoadTimesKnown
    | ConfigChanged
    | TimePassed
    | ShutdownAsked
)
