"""What happens to a worker, and what it does about it. Plain data, both."""

from collections.abc import Mapping

import msgspec

from ostler.domain.worker import Capabilities
from ostler.runtime.base import Ended, Held
from ostler.runtime.probe.usage import DeviceUsage
from ostler.wire.messages import Message
from ostler.worker.orders import Facts, Order

OUTPUTS, VALUE = "outputs", "value"
"""What a success may be lacking."""


class TookBack(msgspec.Struct):
    """At the start: what an earlier process of this worker left, running or ended."""

    held: list[tuple[Held, Facts]]


class Connected(msgspec.Struct):
    """A socket to the hub is open; nothing has been said on it."""


class ConnectionLost(msgspec.Struct):
    pass


class Assigned(msgspec.Struct):
    order: Order


class Misassigned(msgspec.Struct, kw_only=True):
    """An assignment that cannot be carried out as it is written."""

    task_id: str
    attempt: str
    error: str


class CancelAsked(msgspec.Struct, kw_only=True):
    task_id: str
    attempt: str = ""
    """Empty: whatever this worker has of the task."""
    reason: str = ""
    grace_s: float = 10.0
    unstarted: bool = False
    """Only if it waits for another's end."""


class Acknowledged(msgspec.Struct, kw_only=True):
    """The hub has a result; of this task, where it names no attempt."""

    task_id: str = ""
    attempt: str = ""


class HubHeard(msgspec.Struct, kw_only=True):
    """The hub has answered a heartbeat that was sent so long ago: it has known of this worker since then, at least."""

    age_s: float


class LaunchFailed(msgspec.Struct, kw_only=True):
    """There is no process."""

    attempt: str
    error: str
    by_task: bool = False
    """It would fail on any other worker too."""


class Launched(msgspec.Struct, kw_only=True):
    """What was not known of an attempt before it was prepared is known now."""

    attempt: str
    facts: Facts


class DevicesReleased(msgspec.Struct, kw_only=True):
    """An ended attempt's devices were watched until they were clean, or for long enough; this was seen last."""

    attempt: str
    usages: list[DeviceUsage]


class DevicesSeen(msgspec.Struct):
    """What is on the GPUs now."""

    usages: list[DeviceUsage]


class InLine(msgspec.Struct, kw_only=True):
    """It has not begun, and this is what the queue that it is in says."""

    attempt: str
    waits_for: str


class Begun(msgspec.Struct, kw_only=True):
    """Its turn has come in the queue that it was in."""

    attempt: str


class ProcessEnded(msgspec.Struct):
    end: Ended
    nothing_to_bring: bool = False
    """It has left nothing, and nobody was promised its log: all that there is to say of it is its end."""


class OutcomeCollected(msgspec.Struct, kw_only=True):
    """What the attempt has left is with the hub, as far as it goes; and this is what it told."""

    attempt: str
    result: str = ""
    """A function's value, or the blob of one that is too large for a message."""
    result_id: str = ""
    artifact_id: str = ""
    checkpoint_id: str = ""
    metrics: dict[str, float] = {}
    last_line: str = ""
    """Of its log."""
    error: str = ""
    """Why its value or its outputs cannot be handed over at all."""
    lacked: str = ""
    """`vram` or `memory`: what it ran out of, and how that was seen."""
    lacked_line: str = ""
    disk_full: bool = False
    """Of one that failed: there is no room on this machine's disk."""
    said: str = ""
    """What went wrong beside the command itself: its prolog, or its epilog."""
    unreachable: bool = False
    """The hub could not be reached: something is missing that a later try may bring."""
    lacking: str = ""
    """Of that, what the hub must have before it hears of a success."""
    progressed: bool = False
    """The hub has more of it than before this try."""


class CheckpointBrought(msgspec.Struct, kw_only=True):
    """The hub has this blob of the checkpoint of an attempt that runs."""

    attempt: str
    checkpoint: str


class ServiceProbed(msgspec.Struct, kw_only=True):
    """A service was looked at. What is wrong, where anything is; liveness counts once it has been well."""

    attempt: str
    not_ready: str = ""
    not_alive: str = ""


class BeatDue(msgspec.Struct):
    peaks: Mapping[str, int] = {}
    """How much memory what runs has taken at most, in MiB."""
    samples: Mapping[str, tuple[int, int]] = {}
    """How much it takes at the moment, and the milliseconds of processor time that it has taken."""


class OfferChanged(msgspec.Struct):
    capabilities: Capabilities
    batch_slots: int | None = None
    """None: as many as before."""


class DiskChanged(msgspec.Struct):
    full: bool


class SnapshotsChanged(msgspec.Struct):
    """These are unpacked here, the latest used first."""

    ids: list[str]


class DrainAsked(msgspec.Struct):
    """Take nothing new; services stop now, batch tasks may finish."""


class DrainEnded(msgspec.Struct, kw_only=True):
    """Whatever still runs is stopped and handed back."""

    grace_s: float = 10.0


Event = (
    TookBack
    | Connected
    | ConnectionLost
    | Assigned
    | Misassigned
    | CancelAsked
    | Acknowledged
    | HubHeard
    | LaunchFailed
    | Launched
    | InLine
    | Begun
    | ProcessEnded
    | DevicesReleased
    | DevicesSeen
    | OutcomeCollected
    | CheckpointBrought
    | ServiceProbed
    | BeatDue
    | OfferChanged
    | DiskChanged
    | SnapshotsChanged
    | DrainAsked
    | DrainEnded
)


class LaunchTask(msgspec.Struct):
    order: Order


class WatchService(msgspec.Struct, kw_only=True):
    """One that an earlier process of this worker has launched."""

    attempt: str
    facts: Facts


class AwaitRelease(msgspec.Struct, kw_only=True):
    """See whether an ended attempt has left its devices as they were; answered by DevicesReleased."""

    task_id: str
    attempt: str
    baseline_mib: dict[int, int]


class StopTask(msgspec.Struct, kw_only=True):
    attempt: str
    reason: str
    grace_s: float


class CallBack(msgspec.Struct, kw_only=True):
    """End it if it has not been started; if it has, it goes on."""

    attempt: str


class CollectOutcome(msgspec.Struct, kw_only=True):
    """Bring to the hub what the attempt has left; answered by OutcomeCollected."""

    task_id: str
    attempt: str
    call: bool = False
    """A function's value is looked for."""
    succeeded: bool = True
    """Then its outputs are packed; if not, the next attempt may begin from its checkpoint."""
    killed: bool = False
    """By SIGKILL, and not by us: it may have been the kernel, for want of memory."""
    outputs: tuple[str, ...] = ()
    """Paths in its working directory that are outputs, too."""
    left_nothing: bool = False
    """The runtime has seen that it printed nothing and that there are no files of it."""
    after_s: float = 0.0


class RenewLeases(msgspec.Struct, kw_only=True):
    """Tasks that must never run twice at once may go on: contact was that long ago."""

    age_s: float


class ForgetTask(msgspec.Struct, kw_only=True):
    """Its result is with the hub: nothing of it is needed any more but its log."""

    task_id: str
    attempt: str
    done: bool = False
    """No later attempt will need the task's checkpoint."""


class Send(msgspec.Struct):
    message: Message


Effect = (
    LaunchTask | WatchService | AwaitRelease | StopTask | CallBack | CollectOutcome | RenewLeases | ForgetTask | Send
)
