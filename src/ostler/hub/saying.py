"""Effects as what a worker is told.

Those that follow each other and are alike are said in one message, where the worker takes that: the assignments of a
line, which share their spec, and the acknowledgements of results.
"""

from typing import Any

import msgspec

from ostler.core.effects import (
    Acknowledge,
    AssignTask,
    CancelTask,
    CloseSession,
    HintSnapshot,
    SayNoWork,
    ToWorker,
)
from ostler.domain.finite import encode
from ostler.domain.gang import torchrun
from ostler.domain.job import JobSpec
from ostler.domain.secrets import names_some
from ostler.wire import messages, version_1
from ostler.wire.messages import Follower, JobAssign, Message

_spec_of = msgspec.json.Decoder(JobSpec).decode

LONGEST_NS = 2**63 - 1
"""`remaining_time` is a signed number of 64 bits."""
MOST_IN_LINE = 64
"""Those behind its first: so that the first of many are begun while the rest is still being said."""


class Saying:
    """One effect, said by itself."""

    def __init__(self, first: ToWorker, specs: dict[str, bytes], *, plain: bool = False) -> None:
        self.first = first
        self._specs = specs
        self._plain = plain

    def takes(self, effect: ToWorker) -> bool:
        """Whether this one is said with the others from now on."""
        return False

    def messages(self) -> list[Message]:
        assert not isinstance(self.first, CloseSession)
        return [to_message(self.first, self._specs, plain=self._plain)]

    @property
    def names_secrets(self) -> bytes:
        """The spec of the assignment, where that names any."""
        spec = self._specs[self.first.job_id] if isinstance(self.first, AssignTask) else b""
        return spec if names_some(spec) else b""


class Acknowledgements(Saying):
    def __init__(self, first: Acknowledge, specs: dict[str, bytes]) -> None:
        super().__init__(first, specs)
        self._attempts = [first.attempt]

    def takes(self, effect: ToWorker) -> bool:
        if not isinstance(effect, Acknowledge) or effect.of != "job_result" or not effect.attempt:
            return False
        self._attempts.append(effect.attempt)
        return True

    def messages(self) -> list[Message]:
        if len(self._attempts) == 1:
            return super().messages()
        return [messages.Ack(of="job_result", attempts=self._attempts)]


class Assignments(Saying):
    """Several lines may grow at once, each behind another that runs there."""

    def __init__(self, first: AssignTask, specs: dict[str, bytes]) -> None:
        super().__init__(first, specs)
        self._messages: list[JobAssign] = []
        self._growing: dict[str, tuple[AssignTask, JobAssign]] = {}
        """By the last of each line: its first, and the message that has all of them."""
        self._add(first)

    def takes(self, effect: ToWorker) -> bool:
        if not isinstance(effect, AssignTask) or names_some(self._specs[effect.job_id]):
            return False
        if len(effect.after) == 1 and effect.after[0] in self._growing:
            first, message = line = self._growing.pop(effect.after[0])
            if len(message.line) < MOST_IN_LINE and self._are_alike(first, effect):
                message.line.append(Follower(effect.task_id, effect.attempt, effect.index))
                self._growing[effect.attempt] = line
                return True
        self._add(effect)
        return True

    def messages(self) -> list[Message]:
        return [*self._messages]

    def _add(self, effect: AssignTask) -> None:
        message = _assignment(effect, self._specs)
        self._messages.append(message)
        self._growing[effect.attempt] = (effect, message)

    def _are_alike(self, first: AssignTask, other: AssignTask) -> bool:
        """In all that is said of an assignment but its task, its attempt and whom it waits for."""
        if first.remaining_s != other.remaining_s or first.devices or other.devices or first.whole != other.whole:
            return False
        if first.rank is not None or other.rank is not None or first.checkpoint or other.checkpoint:
            return False
        return first.job_id == other.job_id or self._rest_of_spec(first) == self._rest_of_spec(other)

    def _rest_of_spec(self, effect: AssignTask) -> bytes:
        return self._specs[effect.job_id][len(_head(effect.job_id)) :]


def saying(effect: ToWorker, specs: dict[str, bytes], *, together: bool, plain: bool) -> Saying:
    """`together`: whether the worker takes several in one message. `plain`: whether it speaks version 1."""
    if together and isinstance(effect, AssignTask) and not names_some(specs[effect.job_id]):
        return Assignments(effect, specs)
    if together and isinstance(effect, Acknowledge) and effect.of == "job_result" and effect.attempt:
        return Acknowledgements(effect, specs)
    return Saying(effect, specs, plain=plain)


def to_message(
    effect: AssignTask | CancelTask | Acknowledge | HintSnapshot | SayNoWork,
    specs: dict[str, bytes],
    *,
    plain: bool = False,
) -> Message:
    match effect:
        case AssignTask():
            return _assignment(effect, specs, plain=plain)
        case CancelTask():
            return messages.JobCancel(
                task_id=effect.task_id,
                attempt=effect.attempt,
                reason=effect.reason,
                grace_seconds=effect.grace_s,
                unstarted=effect.unstarted or msgspec.UNSET,
            )
        case Acknowledge():
            return messages.Ack(of=effect.of, task_id=effect.task_id, attempt=effect.attempt, sent_at=effect.sent_at)
        case HintSnapshot():
            label = version_1.label_of(specs.get(effect.job_id, b"{}")) if plain else ""
            return messages.PrewarmHint(
                task_id=effect.task_id, snapshot_id=label or effect.snapshot, snapshot_sha=effect.snapshot
            )
        case SayNoWork():
            return messages.NoWork()


def _assignment(effect: AssignTask, specs: dict[str, bytes], *, plain: bool = False) -> JobAssign:
    spec = spec_for_task(specs[effect.job_id], effect.job_id, effect.task_id)
    return JobAssign(
        spec=_plain_spec(effect, spec) if plain else msgspec.Raw(_naming_the_blob(spec)),
        attempt=effect.attempt,
        remaining_time=min(int(effect.remaining_s * 1e9), LONGEST_NS),
        devices=list(effect.devices),
        whole=effect.whole,
        index=effect.index,
        rank=effect.rank,
        peers=[messages.Peer(rank=rank, host=host) for rank, host in enumerate(effect.hosts)],
        master_port=effect.master_port,
        checkpoint=effect.checkpoint,
        checkpoint_by=effect.checkpoint_by,
        after=list(effect.after),
    )


def _plain_spec(effect: AssignTask, spec: bytes) -> dict[str, Any]:
    shares = effect.vram_mib and not effect.whole
    gpus = len(effect.devices) if effect.devices and not shares else None
    reserved = version_1.Reserved(gpus=gpus, vram_mib=effect.vram_mib, memory_mib=effect.memory_mib)
    return version_1.spec(spec, reserved, _variables(effect))


def _variables(effect: AssignTask) -> dict[str, str]:
    """What Ostler's own workers tell a task beside its spec."""
    found = {} if effect.index is None else {"OSTLER_INDEX": str(effect.index)}
    if effect.rank is not None:
        found |= torchrun(effect.rank, effect.hosts, effect.master_port)
    return found


def _naming_the_blob(spec: bytes) -> bytes:
    """Ostler's own workers fetch `snapshot_id`: it is the blob's hash, or absent where it is only a label."""
    if b'"snapshot_id"' not in spec and b'"snapshot_sha"' not in spec:
        return spec
    found = _spec_of(spec)
    if found.snapshot() == found.snapshot_id:
        return spec
    fields = msgspec.json.decode(spec)
    fields["snapshot_id"] = found.snapshot()
    return encode(fields)


def spec_for_task(spec: bytes, job_id: str, task_id: str) -> bytes:
    """The job's spec under the task's id. A stored spec begins with its id, so no parsing is needed."""
    if task_id == job_id:
        return spec
    head = _head(job_id)
    assert spec.startswith(head)
    return _head(task_id) + spec[len(head) :]


def _head(name: str) -> bytes:
    return b'{"id":"%s"' % name.encode()
