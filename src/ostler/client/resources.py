"""`resources` and the options beside it, as people write them, and the fields of a spec that they stand for."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypedDict

from ostler.client.errors import BadInput, BadResources
from ostler.domain.labels import parse_constraint
from ostler.domain.quantities import AUTO, parse_size
from ostler.domain.resources import BACKENDS

Resources = Mapping[str, Any]
Labels = str | Iterable[str] | Mapping[str, str]
GIB = 1024**3
_MEANT = {
    "cores": "cpu",
    "core": "cpu",
    "ram": "memory",
    "accelerator": "gpu",
    "node_count": "nodes",
    "where": "labels",
}
_MEANT_BACKEND = {"cuda": "nvidia", "mps": "metal", "hip": "rocm", "amd": "rocm", "apple": "metal"}


class Options(TypedDict, total=False):
    """What may be said about any job beside what it runs. None is the same as leaving it out."""

    id: str | None
    name: str | None
    resources: Resources | None
    labels: Labels | None
    prefer_labels: Labels | None
    scheduling_timeout_seconds: float | None
    max_runtime_hours: float | None
    max_attempts: int | None
    max_retries: int | None
    on_oom: str | None
    priority: int | None
    tier: str | None
    env: Mapping[str, str] | None
    user_id: str | None
    metadata: Mapping[str, Any] | None
    secrets: Sequence[str] | None
    """NAME, or NAME:VARIABLE."""


OPTIONS = tuple(Options.__annotations__)


def spec_fields(options: Options, taker: str) -> dict[str, Any]:
    """The fields of a spec for these options; `taker` is who was given them, for the message."""
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"{taker}() got an unexpected option {name!r}{nearest(name, OPTIONS)}")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    fields = resource_fields(given.pop("resources", {}))
    for name in ("labels", "prefer_labels"):
        if name in given:
            fields[name] = fields.get(name, []) + _labels(name, given.pop(name))
    for name in ("env", "metadata"):
        if name in given:
            if not isinstance(given[name], Mapping):
                raise BadResources(f"{name} must be a dictionary, not {given[name]!r}")
            given[name] = dict(given[name])
    if "secrets" in given:
        given["secrets"] = [given["secrets"]] if isinstance(given["secrets"], str) else list(given["secrets"])
    if "tier" in given:
        given["job_tier"] = given.pop("tier")
    return {**fields, **given}


def resource_fields(resources: Resources) -> dict[str, Any]:
    """The fields of a spec for `resources`, or a ValueError that names the key."""
    if not isinstance(resources, Mapping):
        raise _wrong("resources", resources, f"a dictionary with keys like {', '.join(_KEYS)}")
    fields: dict[str, Any] = {}
    for key, value in resources.items():
        if key not in _KEYS:
            raise BadResources(
                f"resources: unknown key {key!r}{nearest(str(key), _KEYS, _MEANT)}",
                [(f"resources.{key}", "unknown key")],
            )
        field, read = _KEYS[key]
        fields[field] = read(f"resources[{key!r}]", value)
    return fields


def nearest(word: str, known: Iterable[str], meant: Mapping[str, str] | None = None) -> str:
    """'; did you mean …?', or all there is where nothing is near."""
    known = list(known)
    close = [(meant or {}).get(word.lower(), "")]
    close = [one for one in close if one] or get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def _wrong(where: str, value: object, wanted: str, hint: str = "") -> BadResources:
    return BadResources(f"{where} must be {wanted}, not {value!r}{hint}", [(where, f"must be {wanted}")])


def _cores(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise _wrong(where, value, "a number of cores, 0 or more")
    return float(value)


def _count(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        part = isinstance(value, float) and value > 0
        raise _wrong(
            where,
            value,
            "a whole number, 0 or more",
            "; for a part of a GPU ask for 'gpu_share' or 'vram'" if part else "",
        )
    return value


def _share(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise _wrong(where, value, "a part of one GPU, above 0 and below 1")
    return float(value)


def _nodes(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(where, value, "a whole number, 1 or more")
    return value


def _gib(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _wrong(where, value, "a size such as '8g', or a number of bytes")
    try:
        return parse_size(value, where) / GIB
    except BadInput as error:
        raise BadResources(str(error), error.errors) from None


def _gib_or_auto(where: str, value: object) -> float | str:
    return AUTO if value == AUTO else _gib(where, value)


def _word(where: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(where, value, "a name such as 'A100'; leave it out where any will do")
    return value.strip()


def _backend(where: str, value: object) -> str:
    name = value.strip().lower() if isinstance(value, str) else ""
    if name not in BACKENDS:
        raise _wrong(where, value, f"one of {', '.join(BACKENDS)}", nearest(name, BACKENDS, _MEANT_BACKEND))
    return name


def _labels(where: str, value: object) -> list[str]:
    """'zone = eu', a list of such, or {'zone': 'eu'}."""
    if isinstance(value, str):
        listed: list[object] = [value]
    elif isinstance(value, Mapping):
        listed = [f"{label} = {wanted}" for label, wanted in value.items()]
    elif isinstance(value, Iterable):
        listed = list(value)
    else:
        raise _wrong(where, value, "a list of constraints such as 'zone = eu'")
    return [_constraint(where, one) for one in listed]


def _constraint(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(where, value, "a list of constraints such as 'zone = eu'")
    try:
        return str(parse_constraint(value, where))
    except BadInput as error:
        raise BadResources(str(error), error.errors) from None


_KEYS: dict[str, tuple[str, Callable[[str, object], Any]]] = {
    "cpu": ("min_cpu_cores", _cores),
    "memory": ("min_memory_gb", _gib_or_auto),
    "gpu": ("gpu_count", _count),
    "gpu_type": ("gpu_type", _word),
    "gpu_share": ("gpu_share", _share),
    "backend": ("gpu_backend", _backend),
    "vram": ("min_vram_gb", _gib_or_auto),
    "nodes": ("node_count", _nodes),
    "labels": ("labels", _labels),
}
