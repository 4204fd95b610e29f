"""The pull API: work for machines that cannot hold a connection open. Plain HTTP, JSON bodies.

A claim is an assignment that its worker asked for: the same queue, the same matcher, the same ledger.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.core.effects import Beaten, Claimed, NothingToClaim, Reply
from ostler.core.events import ClaimBeat, ClaimEnded, ClaimRequested, Event, TaskEnded
from ostler.core.reports import SUCCESS
from ostler.domain import states
from ostler.domain.errors import BadInput, Conflict, NotAllowed, NotFound
from ostler.domain.job import Training
from ostler.domain.states import STATUS
from ostler.domain.worker import MAX_DEVICES, Amount, Capabilities, DeviceInfo, Mib, Word
from ostler.hub.api.routes import caller_of, decode_body, json_response, read_body
from ostler.hub.artifacts import Artifacts
from ostler.hub.loop import Loop
from ostler.store.streaming import STORE, in_thread
from ostler.wire.messages import ExitCode, Id, Seconds, told_metrics

MAX_BODY = 256 * 1024
MAX_REASON = 1000
MAX_PROGRESS = 4096
MAX_LEVELS = 32
"""Of what is kept as it was said: whoever reads it nests its own calls as deep."""


class ClaimDevice(msgspec.Struct):
    name: Word = ""
    vram_total_gib: Amount = 0.0
    vram_free_gib: Amount | None = None


class ClaimCapability(msgspec.Struct):
    """What a machine says about itself when it asks for work."""

    cpu_cores: Amount
    ram_available_gib: Amount
    cuda_available: bool = False
    cuda_devices: Annotated[list[ClaimDevice], msgspec.Meta(max_length=MAX_DEVICES)] = []
    ram_total_gib: Amount | None = None
    torch_version: Word | None = None
    git_commit: Word | None = None

    def capabilities(self, hostname: str) -> Capabilities:
        has_cuda = self.cuda_available
        devices = self.cuda_devices if has_cuda else []
        return Capabilities(
            gpu_backend="nvidia" if has_cuda else "cpu",
            gpu_count=max(1, len(devices)) if has_cuda else 0,
            vram_gb=sum(device.vram_total_gib for device in devices),
            devices=[
                DeviceInfo(
                    index=index, name=device.name, vram_gb=device.vram_total_gib, vram_free_gb=device.vram_free_gib
                )
                for index, device in enumerate(devices)
            ],
            cpu_count=self.cpu_cores,
            memory_gb=self.ram_total_gib or 0.0,
            memory_available_gb=self.ram_available_gib,
            hostname=hostname,
            torch_version=self.torch_version or "",
            git_commit=self.git_commit or "",
        )


class Claim(msgspec.Struct):
    hostname: Id
    capability: msgspec.Raw
    """A ClaimCapability; what else is in it is kept too."""


class Beat(msgspec.Struct):
    hostname: Id
    attempt: str | None = None
    progress: Any = None


class Taken(msgspec.Struct):
    """What a task took, where its machine measures that."""

    hostname: Id
    run_s: Seconds = 0.0
    peak_memory_mib: Mib = 0
    peak_vram_mib: Mib = 0


class Completion(Taken):
    artifact_id: str | None = None
    attempt: str | None = None
    metrics: dict[str, float] | None = None
    """Left out: they are looked for in the artifact."""


class Failure(Taken):
    error: str = ""
    exit_code: ExitCode | None = None
    attempt: str | None = None
    returned: bool = False
    """The machine hands it back unharmed, because it is leaving: no fault of the job's, and nothing is spent."""
    fault: Literal["", "worker"] = ""
    """Handed back by a fault of its own: that is a loss, and a machine with many is left alone for a while."""
    lacked: Literal["", "vram", "memory"] = ""
    """What it ran out of and died."""


class _Spec(msgspec.Struct):
    """What a claim tells of a job's spec."""

    name: str = ""
    command: list[str] = []
    env: dict[str, str] = {}
    training: Training | None = None


_spec_of = msgspec.json.Decoder(_Spec).decode


class PullApi:
    def __init__(self, loop: Loop, artifacts: Artifacts) -> None:
        self._loop = loop
        self._artifacts = artifacts

    async def claim(self, request: Request) -> Response:
        body = await read_body(request, MAX_BODY)
        wanted = decode_body(body, Claim)
        said = decode_body(bytes(wanted.capability), ClaimCapability, "capability")
        _must_speak_for(request, wanted.hostname)
        reply = await self._loop.ask_any(
            lambda ref: ClaimRequested(
                ref=ref,
                worker_id=wanted.hostname,
                capabilities=said.capabilities(wanted.hostname),
                capability=_shown(bytes(wanted.capability)),
            )
        )
        if isinstance(reply, NothingToClaim):
            return Response(status_code=204, headers={"Ostler-Reason": await self._reason(reply)})
        assert isinstance(reply, Claimed)
        return json_response(await self._document(reply))

    async def _reason(self, reply: NothingToClaim) -> str:
        job_id = reply.job_id
        known = await self._loop.read(lambda ledger: ledger.jobs([job_id])) if job_id else {}
        name = known[job_id].name or job_id if job_id in known else job_id
        told = f"{name}: {reply.reason}" if name else reply.reason
        # A header is one line of plain characters, whatever a job is called.
        return "".join(char if char.isprintable() and char.isascii() else "?" for char in told[:MAX_REASON])

    async def _document(self, claimed: Claimed) -> dict[str, Any]:
        specs, attempts = await self._loop.read(
            lambda ledger: (ledger.specs([claimed.job_id]), ledger.attempts_of(claimed.task_id))
        )
        succeeded = [attempt.attempt for attempt in attempts if attempt.state in SUCCESS]
        spec = _spec_of(specs[claimed.job_id])
        training = spec.training or Training()
        env = dict(spec.env)
        if claimed.has_devices:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in claimed.devices)
        if claimed.index is not None:
            env["OSTLER_INDEX"] = str(claimed.index)
        return {
            "job_id": claimed.task_id,
            "task_id": claimed.task_id,
            "name": spec.name,
            "model": training.model,
            "mode": training.mode,
            "hyper": training.hyper,
            "seed": training.seed,
            "split_recipe": training.split_recipe,
            "train_hosts": training.train_hosts,
            "n_resamples": training.n_resamples,
            "command": spec.command,
            "env": env,
            "devices": claimed.devices,
            "attempt": claimed.attempt,
            "after": succeeded[-1] if succeeded else "",
            "lease_s": claimed.lease_s,
            "status": STATUS[states.ASSIGNED],
        }

    async def heartbeat(self, request: Request) -> Response:
        said = decode_body(await read_body(request, MAX_BODY), Beat, deep=True)  # its progress is left out instead
        task_id = request.path_params["id"]
        _must_speak_for(request, said.hostname)
        reply = await self._ask(
            task_id,
            lambda ref: ClaimBeat(
                ref=ref,
                worker_id=said.hostname,
                task_id=task_id,
                attempt=said.attempt or "",
                progress=_kept(said.progress),
            ),
        )
        assert isinstance(reply, Beaten)
        return json_response({"cancel": reply.cancel})

    async def complete(self, request: Request) -> Response:
        said = decode_body(await read_body(request, MAX_BODY), Completion)
        task_id = request.path_params["id"]
        _must_speak_for(request, said.hostname)
        metrics = await self._metrics(said)
        artifact = self._artifacts.brought(said.artifact_id or "", task_id)
        if said.artifact_id and artifact is None:
            raise BadInput(
                f"artifact_id: there is no artifact {said.artifact_id!r}; upload it first: PUT /v1/model/{{sha256}}",
                [("artifact_id", "unknown artifact")],
            )
        end = TaskEnded(
            worker_id=said.hostname,
            session=0,
            task_id=task_id,
            attempt=said.attempt or "",
            state="succeeded",
            exit_code=0,
            artifact_id=said.artifact_id or "",
            artifact=artifact,
            metrics=told_metrics(metrics),
            run_s=said.run_s,
            peak_memory_mib=said.peak_memory_mib,
            peak_vram_mib=said.peak_vram_mib,
        )
        return await self._end(end)

    async def _metrics(self, said: Completion) -> dict[str, float]:
        if said.metrics is not None or not said.artifact_id:
            return said.metrics or {}
        return await in_thread(STORE, self._artifacts.metrics, said.artifact_id)

    async def fail(self, request: Request) -> Response:
        said = decode_body(await read_body(request, MAX_BODY), Failure)
        _must_speak_for(request, said.hostname)
        end = TaskEnded(
            worker_id=said.hostname,
            session=0,
            task_id=request.path_params["id"],
            attempt=said.attempt or "",
            state="returned" if said.returned else "failed",
            fault=(said.fault or "drain") if said.returned else "",
            exit_code=said.exit_code,
            error=said.error[:MAX_REASON],
            run_s=said.run_s,
            peak_memory_mib=said.peak_memory_mib,
            peak_vram_mib=said.peak_vram_mib,
            lacked=said.lacked,
        )
        return await self._end(end)

    async def _end(self, end: TaskEnded) -> Response:
        await self._ask(end.task_id, lambda ref: ClaimEnded(ref=ref, end=end))
        if end.artifact is not None:
            await self._artifacts.store.settled()  # whoever hears that it is done finds it under its name
        row = (await self._loop.read(lambda ledger: ledger.tasks([end.task_id])))[end.task_id]
        return json_response({"job_id": end.task_id, "status": STATUS[row.state]})

    async def _ask(self, task_id: str, make: Callable[[int], Event]) -> Reply:
        try:
            return await self._loop.ask_any(make)
        except Conflict:
            job_id = task_id.partition(".")[0]
            if not await self._loop.read(lambda ledger: ledger.jobs([job_id])):
                raise NotFound(f"there is no job {task_id!r}") from None
            raise


def _kept(progress: Any) -> Any:
    """How far it is, in few words: it is held in memory for whoever looks."""
    return progress if _is_flat(progress) and len(msgspec.json.encode(progress)) <= MAX_PROGRESS else None


def _shown(capability: bytes) -> bytes:
    """All that was said, in JSON that everybody can read: it is told to whoever asks for the workers."""
    said = decode_body(capability, dict[str, Any], "capability")
    if not _is_flat(said):
        raise BadInput(f"capability: it is nested over {MAX_LEVELS} levels deep", [("capability", "nested too deep")])
    return msgspec.json.encode(said)


def _is_flat(value: Any, levels: int = MAX_LEVELS) -> bool:
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_flat(one, levels - 1) for one in inner)


def _must_speak_for(request: Request, hostname: str) -> None:
    caller = caller_of(request)
    if not caller.may_speak_for(hostname):
        raise NotAllowed(f"this token is {caller.user}'s and does not speak for {hostname}")
