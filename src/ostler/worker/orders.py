"""An assignment as the worker understands it, and the part of it that must outlive the worker's own process."""

import base64
import binascii
import re

import msgspec

from ostler.domain import secrets
from ostler.domain.job import CALL, STOP_ALONE_GRACE_S, TIER_GRACE_S
from ostler.runtime.attempts import is_attempt_name
from ostler.wire.messages import Follower, JobAssign, Peer

PORT = "ostler.port"
STOP = "ostler.stop"
"""Keys in a spec's metadata: a service must have this port; its process is ended by this command."""
_TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}(\.[0-9]{1,9})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class NotUnderstood(Exception):
    """The assignment cannot be carried out as it is written: its author corrects the spec."""


class Checks(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where a service says how it is: paths on its port. Without any, a port that accepts is all there is to see."""

    liveness: str = ""
    readiness: str = ""
    interval_secs: float = 10.0


STOPS_EARLIER_S = 30.0
"""A task that must never run twice at once is stopped this long before the hub gives it to somebody else."""


class TaskSpec(msgspec.Struct, kw_only=True):
    """What a worker reads of a job's spec. Fields that it does not know are the hub's business."""

    id: str
    type: str = "batch"
    slot_pool: str = ""
    gpu_count: int = 0
    min_cpu_cores: float = 0.0
    command: list[str]
    prolog: list[str] = []
    epilog: list[str] = []
    env: dict[str, str] = {}
    metadata: dict[str, object] = {}
    outputs: list[str] = []
    health_check: Checks | None = None
    snapshot_id: str = ""
    user_id: str = ""
    job_tier: str = "data_processing"
    on_lost_contact: str = "continue"
    secrets: list[str] = []
    min_memory_gb: float | str = 0.0

    def memory_limit_mib(self, times: float) -> int:
        """What was learnt of its like is no limit, only what was asked for."""
        return 0 if isinstance(self.min_memory_gb, str) else int(self.min_memory_gb * 1024 * times)

    def lease_s(self) -> float:
        """How long it may run without contact to the hub; 0: as long as it likes."""
        if self.on_lost_contact != "stop":
            return 0.0
        return max(TIER_GRACE_S.get(self.job_tier, 0.0), STOP_ALONE_GRACE_S) - STOPS_EARLIER_S


class Payload(msgspec.Struct, kw_only=True):
    """A pickled function: in the message itself, or to be fetched from the hub by its hash."""

    inline: bytes = b""
    blob: str = ""


class Facts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a worker must know of an attempt that it finds running when it starts."""

    pool: str = "batch"
    service: bool = False
    """A service or a model: it runs until it is stopped."""
    model: bool = False
    """The gateway sends requests to it, and stops it."""
    devices: tuple[int, ...] = ()
    whole: bool = False
    """The devices are held alone, not shared."""
    call: bool = False
    """It leaves a function's value behind."""
    outputs: tuple[str, ...] = ()
    """Paths in its working directory that are packed with its outputs."""
    checks: Checks | None = None
    """Of a service."""
    port: int = 0
    """Of a service, where it listens; allotted when it is launched."""
    snapshot: str = ""
    """What its working directory is a copy of."""
    baseline_mib: dict[int, int] = {}
    """For devices held alone, what was in use on them just before the start."""


class Gang(msgspec.Struct, kw_only=True):
    """The other members of a task that runs on several workers at once, and this one's place among them."""

    rank: int
    peers: list[Peer]
    master_port: int = 0

    @property
    def hosts(self) -> list[str]:
        """In order of rank."""
        return [peer.host for peer in sorted(self.peers, key=lambda peer: peer.rank)]


class Order(msgspec.Struct, kw_only=True):
    """One assignment, understood."""

    task_id: str
    attempt: str
    facts: Facts
    spec: TaskSpec
    payload: Payload | None = None
    remaining_s: float = 0.0
    index: int | None = None
    gang: Gang | None = None
    checkpoint: str = ""
    """The blob to begin from, and the worker that brought it to the hub."""
    checkpoint_by: str = ""
    after: tuple[str, ...] = ()
    """Attempts whose end it waits for."""
    secrets: dict[str, bytes] = {}
    """What is in those that the spec names."""

    @property
    def wanted_port(self) -> int:
        """Where a model's server listens, if it cannot be told where to."""
        port = self.spec.metadata.get(PORT, 0)
        return port if isinstance(port, int) and 0 < port < 65_536 else 0

    @property
    def stop_command(self) -> list[str]:
        """What ends a model's server in its own way."""
        command = self.spec.metadata.get(STOP) if self.spec.type == "model" else None
        return [str(word) for word in command] if isinstance(command, list) else []

    @property
    def job_id(self) -> str:
        """A job's id has no dot; an array's tasks are `<id>.<n>`."""
        return self.task_id.partition(".")[0]


def understand(message: JobAssign) -> Order:
    """The order in this message, or NotUnderstood."""
    try:
        spec = msgspec.convert(message.spec, TaskSpec)
        payload = msgspec.convert(spec.metadata[CALL], Payload) if CALL in spec.metadata else None
    except msgspec.ValidationError as error:
        raise NotUnderstood(f"the worker cannot read the spec: {error}") from None
    _must_be_names(message.attempt, spec.id)
    if not spec.command:
        raise NotUnderstood("the spec has no command")
    if spec.snapshot_id and not is_sha256(spec.snapshot_id):
        raise NotUnderstood(f"{spec.snapshot_id[:80]!r} cannot be the id of a snapshot: it is no sha256")
    if message.checkpoint and not is_sha256(message.checkpoint):
        raise NotUnderstood(f"{message.checkpoint[:80]!r} cannot be the id of a checkpoint: it is no sha256")
    service = spec.type in ("service", "model")
    facts = Facts(
        pool=spec.slot_pool or ("service" if service else "batch"),
        service=service,
        model=spec.type == "model",
        devices=tuple(message.devices),
        whole=spec.gpu_count > 0 if message.whole is None else message.whole,
        call=payload is not None,
        outputs=tuple(spec.outputs),
        checks=spec.health_check if service else None,
        snapshot=spec.snapshot_id,
    )
    return Order(
        task_id=spec.id,
        attempt=message.attempt,
        facts=facts,
        spec=spec,
        payload=payload,
        remaining_s=message.remaining_time / 1e9,
        index=message.index,
        gang=_gang(message),
        checkpoint=message.checkpoint,
        checkpoint_by=message.checkpoint_by,
        after=tuple(message.after),
        secrets=_opened(message.secrets) if message.secrets else {},
    )


def following(before: Order, follower: Follower) -> Order:
    """The order of the next in a line: as the one before it, which it waits for."""
    _must_be_names(follower.attempt, follower.task_id)
    return Order(
        task_id=follower.task_id,
        attempt=follower.attempt,
        facts=before.facts,
        spec=before.spec,
        payload=before.payload,
        remaining_s=before.remaining_s,
        index=follower.index,
        after=(before.attempt,),
    )


def _must_be_names(attempt: str, task_id: str) -> None:
    if not is_attempt_name(attempt):
        raise NotUnderstood(f"{attempt[:80]!r} cannot be the name of an attempt")
    if not is_task_id(task_id):
        raise NotUnderstood(f"{task_id[:80]!r} cannot be the id of a task")


def _opened(given: dict[str, str]) -> dict[str, bytes]:
    """They become file names, so the names are looked at."""
    try:
        found = {name: base64.b64decode(value, validate=True) for name, value in given.items()}
    except binascii.Error:
        raise NotUnderstood("a secret of the assignment is not base64") from None
    if any(secrets.NAME.fullmatch(name) is None for name in found):
        raise NotUnderstood("a secret of the assignment has a name that is none")
    return found


def _gang(message: JobAssign) -> Gang | None:
    if message.rank is None:
        return None
    if not any(peer.rank == message.rank for peer in message.peers):
        raise NotUnderstood(f"rank {message.rank} is not among the {len(message.peers)} members of the gang")
    return Gang(rank=message.rank, peers=message.peers, master_port=message.master_port)


def is_sha256(text: str) -> bool:
    """It comes from the network and becomes the name of a folder."""
    return _SHA256.fullmatch(text) is not None


def is_task_id(text: str) -> bool:
    """It comes from the network and becomes the name of a folder."""
    return _TASK_ID.fullmatch(text) is not None


def task_id_of(message: JobAssign) -> str:
    """For the answer to an order that was not understood."""
    spec = message.spec
    return str(spec.get("id", "")) if isinstance(spec, dict) else ""
