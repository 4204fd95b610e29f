"""All that a worker knows of itself and of its tasks. Changed only by its own core."""

from datetime import UTC, datetime

import msgspec

from ostler.domain import states
from ostler.domain.worker import WAITING, ActiveTask, Capabilities, Slots
from ostler.wire.messages import JobResult
from ostler.worker import devices
from ostler.worker.devices import Outside, Quarantine
from ostler.worker.health import Pulse
from ostler.worker.orders import Facts

AHEAD = 1024


class Hold(msgspec.Struct, kw_only=True):
    """One attempt that runs here."""

    task_id: str
    attempt: str
    facts: Facts
    started_at: float
    after: set[str] = set()
    """It was sent ahead, and waits for the end of these; or for its turn in the queue that is named here."""
    waits_for: str = ""
    """What that queue says."""
    cancelled: str | None = None
    """The hub asked for its end, for this reason."""
    pulse: Pulse = msgspec.field(default_factory=Pulse)
    """Of a service."""
    given_up: bool = False
    """A service that is being stopped because it no longer lives."""
    checkpoint: str = ""
    """The one that was brought to the hub last."""
    peak_memory_mib: int = 0
    peak_vram_mib: int = 0
    """What it has taken at most, as far as was seen."""
    memory_mib: int = 0
    vram_mib: int = 0
    cpu_s: float = 0.0
    """What it took when it was last looked at."""


class Ending(msgspec.Struct, kw_only=True):
    result: JobResult
    call: bool = False
    outputs: tuple[str, ...] = ()
    left_nothing: bool = False
    checkpoint: str = ""
    """The one that was brought to the hub while it ran."""
    collecting: bool = False
    collected: bool = False
    tries: int = 0
    baseline_mib: dict[int, int] = {}
    """Of devices that are not known to be clean again: until then the result, which frees them, is held back."""


class Kept(msgspec.Struct):
    result: JobResult
    fresh: bool = True
    """Sent since the last heartbeat: its acknowledgement may well be on the way."""


class State(msgspec.Struct, kw_only=True):
    worker_id: str
    boot_id: str
    capabilities: Capabilities
    batch_slots: int
    service_slots: int
    queue: str = ""
    """Whose queue tasks go through before they begin, in words; "": they begin at once."""
    connected: bool = False
    draining: bool = False
    disk_full: bool = False
    held: dict[str, Hold] = {}
    tasks: dict[str, int] = {}
    """How many attempts of each task are held."""
    behind: dict[str, list[str]] = {}
    """The attempts that wait for the end of each."""
    instead: dict[str, set[str]] = {}
    """Of those that ended before they had begun, until the hub knows: what whoever comes after them waits for."""
    endings: dict[str, Ending] = {}
    results: dict[str, Kept] = {}
    snapshots: list[str] = []
    outside: dict[int, Outside] = {}
    quarantine: dict[int, Quarantine] = {}

    def hold(self, hold: Hold) -> None:
        self.held[hold.attempt] = hold
        self.tasks[hold.task_id] = self.tasks.get(hold.task_id, 0) + 1

    def let_go(self, attempt: str) -> Hold | None:
        hold = self.held.pop(attempt, None)
        if hold is not None:
            left = self.tasks.pop(hold.task_id) - 1
            if left:
                self.tasks[hold.task_id] = left
        return hold

    @property
    def is_quiet(self) -> bool:
        """Nothing runs here, and the hub has every result."""
        return not self.held and not self.endings and not self.results

    @property
    def has_waiting(self) -> bool:
        """Whether something was sent ahead and has not begun. The last to come is the last to begin."""
        return any(hold.after for hold in reversed(self.held.values()))

    @property
    def ahead(self) -> int:
        """How many assignments it takes beyond its slots: enough for the time that an answer of the hub takes."""
        if self.queue:
            return 0  # another queue is no place to wait in for room that is not there
        return AHEAD

    def offered(self) -> Capabilities:
        """What the machine has, and what this worker knows about it beside."""
        return msgspec.structs.replace(
            self.capabilities,
            snapshots=self.snapshots,
            devices=devices.offered(self.capabilities, self.outside, self.quarantine),
        )

    def slots(self) -> Slots:
        services = sum(hold.facts.pool == "service" for hold in self.held.values())
        waiting = sum(bool(hold.after) for hold in self.held.values())
        batches = len(self.held) - services - waiting
        # On a full disk none is free; they are still there, so nobody takes this for a machine that never had any.
        return Slots(
            batch_total=self.batch_slots,
            batch_in_use=max(batches, self.batch_slots) if self.disk_full else batches,
            service_total=self.service_slots,
            service_in_use=max(services, self.service_slots) if self.disk_full else services,
        )

    def account(self) -> list[ActiveTask]:
        """All that this worker answers for; the hub compares it with what it believes."""
        running = [
            ActiveTask(
                task_id=hold.task_id,
                attempt=hold.attempt,
                state=WAITING if hold.after else states.RUNNING,
                started_at=rfc3339(hold.started_at),
                checkpoint=hold.checkpoint,
                peak_memory_mib=hold.peak_memory_mib,
                peak_vram_mib=hold.peak_vram_mib,
                memory_mib=hold.memory_mib,
                vram_mib=hold.vram_mib,
                cpu_s=hold.cpu_s,
                waits_for=(hold.waits_for or self.queue) if hold.after else "",
            )
            for hold in self.held.values()
        ]
        return running + [
            ActiveTask(task_id=result.task_id, attempt=result.attempt, state=result.state) for result in self.ended()
        ]

    def ended(self) -> list[JobResult]:
        """Every result that the hub has not acknowledged."""
        return [one.result for one in self.endings.values()] + [one.result for one in self.results.values()]


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z") if seconds else ""
