"""A job as it is submitted: the spec, what makes one valid, and what the core keeps of it."""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import compress
from operator import attrgetter, is_not
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from ostler.domain import notices, nulls, secrets
from ostler.domain.errors import BadInput, TooLarge, Unreadable
from ostler.domain.labels import Constraint, parse_constraint
from ostler.domain.quantities import AUTO, needed_mib, needed_milli
from ostler.domain.resources import BACKENDS, POOLS, Request

TYPES = ("batch", "service", "model")
"""A service is kept up; a model is up for as long as the gateway wants it."""
PLAIN_TYPES = ("batch", "service")
"""Those that workers of protocol version 1 know."""
TIERS = ("fine_tuning", "training", "evaluation", "data_processing")
TIER_RANK = {"fine_tuning": 0, "training": 0, "evaluation": 1, "data_processing": 2}
TIER_GRACE_S = {"data_processing": 30.0, "evaluation": 120.0, "training": 600.0, "fine_tuning": 600.0}
STOP_ALONE_GRACE_S = 120.0
STOP_GRACE_S = 10.0
DEFAULT_RUNTIME_HOURS = 24.0
MAX_NODES = 1024
MAX_GPU_TYPE = 512
MAX_RUNTIME_HOURS = 168.0
MAX_ARRAY = 1_000_000
MAX_SPEC_BYTES = 256 * 1024
ERRORS_TOLD = 20
SHA256 = re.compile(r"[0-9a-f]{64}")
CALL = "ostler.call"
"""The key in a spec's metadata under which a function's payload is found."""
STOP_WITHIN = "ostler.stop_s"
"""The same for how long the processes of a model have from SIGTERM to SIGKILL."""
MANIFEST_USER = "manifest"
"""Whose the jobs of a manifest are."""
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
AmountOrAuto = Amount | Literal["auto"]


class HealthCheck(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    liveness: str = ""
    readiness: str = ""
    interval_secs: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] = 10.0


class Training(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a training run is about, in the words of the manifest. With a model, the first six make the job's id."""

    model: Annotated[str, msgspec.Meta(max_length=256)] = ""
    mode: Annotated[str, msgspec.Meta(max_length=256)] = ""
    hyper: dict[str, Any] = {}
    split_recipe: str = ""
    train_hosts: list[str] = []
    seed: int = 0
    n_resamples: Count = 0
    sweep: str = ""
    """The sweep that it is one point of."""
    metric: str = ""
    """By which the runs of a sweep are compared."""
    goal: str = ""


class JobSpec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a user submits. Names, defaults and meaning are those of the worker protocol."""

    id: str = ""
    name: str = ""
    type: str = "batch"
    job_tier: str = "data_processing"
    slot_pool: str = ""
    user_id: str = ""
    gpu_count: Count = 0
    gpu_type: str = ""
    gpu_backend: str = ""
    min_vram_gb: AmountOrAuto = 0.0
    gpu_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """A part of one GPU, whatever its size."""
    min_cpu_cores: Amount = 0.0
    min_memory_gb: AmountOrAuto = 0.0
    first_vram_gb: Amount = 0.0
    """What `auto` asks for while nothing is known of its kind; 0: a whole GPU."""
    first_memory_gb: Amount = 0.0
    on_oom: str = ""
    """`larger`: a task that ran out of its GPU's memory is run again on a larger one."""
    node_count: Count = 1
    max_runtime_hours: Amount = 0.0
    command: list[str] = []
    env: dict[str, str] = {}
    prolog: list[str] = []
    epilog: list[str] = []
    snapshot_id: str = ""
    snapshot_sha: str = ""
    health_check: HealthCheck | None = None
    metadata: dict[str, Any] = {}
    metadata_json: dict[str, Any] = {}
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    labels: list[str] = []
    prefer_labels: list[str] = []
    scheduling_timeout_seconds: Amount = 0.0
    max_attempts: Count = 3
    max_retries: Count = 0
    depends_on: list[str] = []
    outputs: list[str] = []
    array: Count = 0
    preemptible: bool = False
    on_lost_contact: str = "continue"
    template: str = ""
    training: Training | None = None
    allowed_hosts: list[str] = []
    denied_hosts: list[str] = []
    prefer_cuda: bool = False
    prefer_cuda_grace_seconds: Amount = 300.0
    secrets: list[str] = []
    """Names of those that its tasks are given: NAME, or NAME:VARIABLE."""
    notify: list[str] = []
    """Who is told of what becomes of it: addresses, `ntfy:TOPIC`, or names of the hub's targets."""
    notify_on: list[str] = []
    """Of what: `end`, `failed`, `lost`, `preempted`; empty: of all."""

    def snapshot(self) -> str:
        """The blob that the working directory is made of; "": none. What is no hash is only a label."""
        return next(filter(SHA256.fullmatch, (self.snapshot_sha, self.snapshot_id)), "")

    def request(self) -> Request:
        return Request(
            gpu_count=self.gpu_count or int(self.min_vram_gb == AUTO and not self.first_vram_gb),
            gpu_type=_one_of(self.gpu_type),
            backend=self.gpu_backend.lower(),
            vram_mib=needed_mib(self.first_vram_gb if self.min_vram_gb == AUTO else self.min_vram_gb),
            gpu_milli=min(999, max(1, round(self.gpu_share * 1000))) if self.gpu_share else 0,
            cores_milli=needed_milli(self.min_cpu_cores),
            memory_mib=needed_mib(self.first_memory_gb if self.min_memory_gb == AUTO else self.min_memory_gb),
            pool=self.slot_pool or ("batch" if self.type == "batch" else "service"),
            labels=_constraints(self.labels, "labels"),
            prefer=_constraints(self.prefer_labels, "prefer_labels"),
            nodes=max(1, self.node_count),
            model=self.training.model if self.training else "",
            allowed_hosts=tuple(sorted(set(self.allowed_hosts))) if self.allowed_hosts else (),
            denied_hosts=tuple(sorted(set(self.denied_hosts))) if self.denied_hosts else (),
            prefers_cuda=self._prefers_cuda(),
            cuda_first_s=self._cuda_first_s(),
            attended=self._is_attended(),
            extended=self._is_extended(),
        )

    def _prefers_cuda(self) -> bool:
        """A preference for what is required anyway says nothing."""
        return self.prefer_cuda and not self.gpu_count

    def _cuda_first_s(self) -> float:
        return self.prefer_cuda_grace_seconds if self._prefers_cuda() else 0.0

    def _is_attended(self) -> bool:
        """A machine that only claims gets a command and an environment, and nothing else."""
        brings_more = self.snapshot() or self.prolog or self.epilog or self.outputs or CALL in self.metadata
        brings_more = brings_more or self.secrets
        return bool(self.type != "batch" or self.node_count > 1 or brings_more)

    def _is_extended(self) -> bool:
        """A worker of protocol version 1 would run it without a part of what it asks for."""
        asks = CALL in self.metadata or self.secrets or self.outputs or self.on_lost_contact == "stop"
        return bool(self.type not in PLAIN_TYPES or asks)

    def size(self) -> int:
        """How many tasks it has, where these have ids of their own: an array's, or a gang's; else 0."""
        return self.array or (self.node_count if self.node_count > 1 else 0)

    def terms(self) -> "Terms":
        return Terms(
            priority=self.priority,
            tier=self.job_tier,
            max_attempts=self.max_attempts,
            max_retries=self.max_retries,
            max_runtime_s=self.runtime_s(),
            limited=bool(self.max_runtime_hours),
            scheduling_timeout_s=self.scheduling_timeout_seconds,
            preemptible=self.preemptible,
            service=self.type == "service",
            model=self.type == "model",
            stops_alone=self.on_lost_contact == "stop",
            cuda_first_s=self._cuda_first_s(),
            stop_s=self._stop_s(),
            auto=self._auto(),
            grows=self.on_oom == "larger",
            notifies=bool(self.notify),
        )

    def _auto(self) -> "Auto | None":
        if AUTO not in (self.min_vram_gb, self.min_memory_gb):
            return None
        return Auto(
            vram=self.min_vram_gb == AUTO,
            memory=self.min_memory_gb == AUTO,
            gpus=self.gpu_count,
            vram_mib=needed_mib(self.first_vram_gb),
            memory_mib=needed_mib(self.first_memory_gb),
        )

    def _stop_s(self) -> float:
        """Others must not make those wait who are to have their room."""
        stop_s = self.metadata.get(STOP_WITHIN) if self.type == "model" else None
        return float(stop_s) if isinstance(stop_s, int | float) and stop_s >= 0 else STOP_GRACE_S

    def runtime_s(self) -> float:
        """The run-time budget in seconds; 0: without end."""
        if self.type != "batch":
            return self.max_runtime_hours * 3600
        return min(self.max_runtime_hours or DEFAULT_RUNTIME_HOURS, MAX_RUNTIME_HOURS) * 3600


class Auto(msgspec.Struct, frozen=True, omit_defaults=True):
    """Needs that are left to what jobs of its kind have taken; the amounts are for when nothing is known of that."""

    vram: bool = False
    memory: bool = False
    gpus: int = 0
    vram_mib: int = 0
    memory_mib: int = 0


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the scheduler keeps of a spec beside its request. Most jobs share theirs with many others."""

    priority: int = 0
    tier: str = "data_processing"
    max_attempts: int = 3
    max_retries: int = 0
    max_runtime_s: float = DEFAULT_RUNTIME_HOURS * 3600
    limited: bool = False
    """That budget is what the user said; else it is the default."""
    scheduling_timeout_s: float = 0.0
    preemptible: bool = False
    service: bool = False
    model: bool = False
    """The gateway's: it asks for no other's room, and gives its own to whoever the gateway lets have it."""
    stops_alone: bool = False
    """Its worker kills it before the grace ends (`on_lost_contact = "stop"`), so that it never runs twice at once."""
    cuda_first_s: float = 0.0
    """How long it waits for a CUDA worker before any other may have it."""
    stop_s: float = STOP_GRACE_S
    """From SIGTERM to SIGKILL."""
    auto: Auto | None = None
    grows: bool = False
    """One that ran out of its GPU's memory is run again on a larger one."""
    notifies: bool = False
    """Somebody wants to be told of what becomes of it."""

    @property
    def grace_s(self) -> float:
        """How long an orphan of this tier waits for its worker."""
        grace = TIER_GRACE_S[self.tier]
        return max(grace, STOP_ALONE_GRACE_S) if self.stops_alone else grace


def _constraints(texts: list[str], field: str) -> tuple[Constraint, ...]:
    return tuple(sorted(parse_constraint(text, field) for text in texts)) if texts else ()


def _one_of(gpu_types: str) -> str:
    """The types that will do, in the one spelling that makes equal requests equal; empty: any."""
    if not gpu_types:
        return ""
    named = {word.strip().lower() for word in gpu_types.split("|")}
    return "" if "auto" in named else "|".join(sorted(named - {""}))


_decode = msgspec.json.Decoder(JobSpec)
_PLAIN_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(JobSpec)
    if isinstance(field.default, (str, int, float, bool))
}
_plain_values = attrgetter(*_PLAIN_DEFAULTS)


def decode_spec(data: bytes, where: str = "") -> JobSpec:
    """The spec in these bytes, valid, or BadInput."""
    if len(data) > MAX_SPEC_BYTES:
        raise TooLarge(
            f"the spec has {len(data)} bytes; a spec may have {MAX_SPEC_BYTES}. Put data into files, not into the spec"
        )
    try:
        spec = nulls.decode(_decode, data)
    except msgspec.ValidationError as error:
        raise _bad_fields(data, where, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"{where or 'the spec'} is not JSON: {error}") from None
    given = _given(spec)
    if errors := [(f"{where}{field}", what) for field, what in _problems(spec, given)]:
        raise BadInput("; ".join(f"{field}: {what}" for field, what in errors), errors)
    for name in given:
        # The encoder leaves out what *is* the default, so that one spec has one spelling.
        if getattr(spec, name) == (default := _PLAIN_DEFAULTS[name]):
            setattr(spec, name, default)
    if spec.metadata_json:
        spec.metadata, spec.metadata_json = {**spec.metadata, **spec.metadata_json}, {}
    return spec


def _given(spec: JobSpec) -> tuple[str, ...]:
    """The plain fields that are not left out."""
    return tuple(compress(_PLAIN_DEFAULTS, map(is_not, _plain_values(spec), _PLAIN_DEFAULTS.values())))


def _problems(spec: JobSpec, given: tuple[str, ...]) -> list[tuple[str, str]]:
    """Every wrong field, and what is wrong with it."""
    found = [(field, told(spec)) for field, holds, told, _ in _rules_for(given) if not holds(spec)]
    for field, constraints in (("labels", spec.labels), ("prefer_labels", spec.prefer_labels)):
        for text in constraints:
            try:
                parse_constraint(text, field)
            except BadInput as error:
                found.extend(error.errors)
    for path in spec.outputs:
        if not path or path.startswith(("/", "~")) or ".." in path.split("/") or "\0" in path:
            found.append(("outputs", f"{path!r} is not a path inside the task's working directory"))
    if spec.secrets:
        found += secrets.problems(spec.secrets)
    if twice := spec.metadata_json.keys() & spec.metadata.keys():
        found.append(("metadata_json", f"has keys that metadata has too: {', '.join(sorted(twice))}"))
    if spec.notify or spec.notify_on:
        found += notices.problems(spec.notify, spec.notify_on)
    if spec.training is not None:
        goal = spec.training.goal
        if goal not in ("", "min", "max"):
            found.append(("training.goal", f"{goal!r} is not 'min' or 'max'"))
        if len(spec.training.hyper) > 1000:
            found.append(("training.hyper", "has over 1000 keys"))
    return found


class Rule(NamedTuple):
    blamed: str
    holds: Callable[[JobSpec], bool]
    told: Callable[[JobSpec], str]
    given: tuple[str, ...]
    """Fields without which it holds: where all of them are left out, nobody has to ask."""


def _rule(
    field: str,
    holds: Callable[[JobSpec], bool],
    otherwise: str | Callable[[JobSpec], str],
    given: tuple[str, ...] = (),
) -> Rule:
    return Rule(field, holds, otherwise if callable(otherwise) else lambda _: otherwise, given or (field,))


def _known_word(field: str, known: Sequence[str], optional: bool = False) -> Rule:
    allowed = {*known, ""} if optional else {*known}
    value = attrgetter(field)
    return _rule(
        field,
        lambda spec: value(spec) in allowed or (field == "gpu_backend" and value(spec).lower() in allowed),
        lambda spec: f"{value(spec)!r} is not one of {', '.join(known)}",
    )


def _at_most(field: str, most: int) -> Rule:
    value = attrgetter(field)
    return _rule(field, lambda spec: value(spec) <= most, lambda spec: f"{value(spec)} is over the limit of {most}")


def _is_automatic(spec: JobSpec) -> bool:
    return AUTO in (spec.min_vram_gb, spec.min_memory_gb)


_RULES: tuple[Rule, ...] = (
    _rule(
        "command",
        lambda spec: bool(spec.command and spec.command[0]),
        "must name a program: a list of at least one non-empty string",
    ),
    _rule("command", lambda spec: "\0" not in "".join(spec.command), "must not contain NUL characters"),
    _rule(
        "env",
        lambda spec: not (spec.env and any("\0" in k + v or "=" in k or not k for k, v in spec.env.items())),
        "names must be non-empty, without '=' or NUL",
    ),
    _rule(
        "id",
        lambda spec: not spec.id or JOB_ID.fullmatch(spec.id) is not None,
        "must match [A-Za-z0-9][A-Za-z0-9_-]{0,127}",
    ),
    _rule("name", lambda spec: len(spec.name) <= 256, "must have at most 256 characters"),
    _rule("gpu_type", lambda spec: len(spec.gpu_type) <= MAX_GPU_TYPE, f"must have at most {MAX_GPU_TYPE} characters"),
    _known_word("type", TYPES),
    _known_word("slot_pool", POOLS, optional=True),
    _known_word("job_tier", TIERS),
    _known_word("gpu_backend", BACKENDS, optional=True),
    _rule(
        "gpu_share",
        lambda spec: not (spec.gpu_share and spec.gpu_count),
        "is a part of one GPU: give either gpu_share or gpu_count",
    ),
    _rule(
        "min_vram_gb",
        lambda spec: not (spec.gpu_share and spec.min_vram_gb == AUTO),
        "'auto' and gpu_share say two things of one",
        given=("gpu_share",),
    ),
    _rule(
        "min_vram_gb",
        lambda spec: not (spec.first_vram_gb or spec.first_memory_gb) or _is_automatic(spec),
        "must be 'auto' where first_vram_gb or first_memory_gb is given",
        given=("first_vram_gb", "first_memory_gb"),
    ),
    _rule(
        "on_oom",
        lambda spec: spec.on_oom in ("", "fail", "larger"),
        lambda spec: f"{spec.on_oom!r} is not 'fail' or 'larger'",
    ),
    _at_most("array", MAX_ARRAY),
    _rule(
        "array",
        lambda spec: not (spec.array and spec.node_count > 1),
        "cannot be combined with node_count above 1",
    ),
    _at_most("node_count", MAX_NODES),
    _rule(
        "type",
        lambda spec: spec.type == "batch" or not spec.size(),
        lambda spec: f"a {spec.type} has one task: neither array nor node_count",
    ),
    _rule(
        "snapshot_sha",
        lambda spec: not spec.snapshot_sha or SHA256.fullmatch(spec.snapshot_sha) is not None,
        "must be a sha256: 64 hexadecimal digits",
    ),
    _rule("snapshot_id", lambda spec: len(spec.snapshot_id) <= 256, "must have at most 256 characters"),
    _rule("on_lost_contact", lambda spec: spec.on_lost_contact in ("continue", "stop"), "must be 'continue' or 'stop'"),
    _rule("depends_on", lambda spec: not (spec.id and spec.id in spec.depends_on), "a job cannot wait for itself"),
)
"""What a valid spec is held to, each with the field that is blamed. What is said is only made up when it is needed:
queues are filled by the million."""


@lru_cache(maxsize=1024)
def _rules_for(given: tuple[str, ...]) -> tuple[Rule, ...]:
    """Those that a spec in which these are given may break: few of all."""
    return tuple(rule for rule in _RULES if any(name in given or name not in _PLAIN_DEFAULTS for name in rule.given))


def _bad_fields(data: bytes, where: str, first: str) -> BadInput:
    """The decoder stops at the first wrong field; people want to hear of all of them at once."""
    try:
        fields = msgspec.json.decode(data)
    except msgspec.DecodeError:
        fields = None  # a number out of range: nothing more can be read of it
    if not isinstance(fields, dict):
        return BadInput(f"{where or 'spec'}: {first}", [(where or "spec", first)])
    fields = nulls.filled(fields, JobSpec)
    wrong: dict[str, str] = {}
    for name, value in fields.items():
        if len(wrong) >= ERRORS_TOLD:
            break
        if name not in JobSpec.__struct_fields__:
            wrong[name] = _unknown_field(name)
            continue
        try:
            msgspec.convert({name: value}, JobSpec)
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at `$")
            field = path.strip("`").lstrip(".").replace("[...]", "")
            wrong[field] = _in_words(field, value, what)
    known = {name: fields[name] for name in JobSpec.__struct_fields__ if name in fields}
    right = {name: value for name, value in known.items() if not any(field.startswith(name) for field in wrong)}
    spec = msgspec.convert(right, JobSpec)
    wrong |= {field: what for field, what in _problems(spec, _given(spec)) if field not in fields.keys() - right}
    errors = [(where + field, what) for field, what in wrong.items()]
    told = [what if what.startswith("unknown field") else f"{field}: {what}" for field, what in errors]
    return BadInput("; ".join(told), errors)


MAY_BE_AUTO = ("min_vram_gb", "min_memory_gb")
NESTED = {"training": Training, "health_check": HealthCheck}


def unknown_fields(fields: Iterable[str]) -> list[str]:
    """Of those that no spec has, what is to be said."""
    return [_unknown_field(name) for name in fields if name not in JobSpec.__struct_fields__]


def _unknown_field(name: str, known: Sequence[str] = JobSpec.__struct_fields__) -> str:
    close = get_close_matches(name, known, n=1)
    return f"unknown field {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def _in_words(field: str, value: object, what: str) -> str:
    """What the decoder says, in words of the people who write specs."""
    if isinstance(value, str) and field in MAY_BE_AUTO:
        return f'must be a number of GiB, or "auto"; not {value!r}'
    if isinstance(value, str) and field in ("command", "prolog", "epilog"):
        words = msgspec.json.encode(value.split()).decode()
        return f"must be a list of words, like {words}; not one text"
    nested = NESTED.get(field)
    if nested is not None and (unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what)):
        return f"has an {_unknown_field(unknown[1], nested.__struct_fields__)}"
    return what
