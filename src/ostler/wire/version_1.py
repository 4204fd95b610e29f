"""Version 1 of the worker protocol: what a peer without extensions can read.

Such a peer is written in Go and decodes with `encoding/json`: a float where an integer is expected is an error, and so
is a number or an object in a map of strings. Fields that the peer does not know are ignored.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ostler.domain.finite import encode as _encode
from ostler.domain.job import JobSpec
from ostler.wire.messages import NAMES, JobAssign, Message

_spec_of = msgspec.json.Decoder(JobSpec).decode


class Reserved(msgspec.Struct, frozen=True):
    """What an attempt holds where its spec names no amounts; 0 or None: the spec says it all."""

    gpus: int | None = None
    vram_mib: int = 0
    memory_mib: int = 0


def encode(message: Message, error: str = "") -> bytes:
    """The frame with every whole number as a JSON integer, never as `8.0`."""
    payload = _of(message) if isinstance(message, JobAssign) else _whole(msgspec.to_builtins(message))
    body: dict[str, Any] = {"type": NAMES[type(message)], "payload": payload}
    if error:
        body["error"] = error
    return _encode(body)


def spec(stored: bytes, reserved: Reserved, variables: Mapping[str, str]) -> dict[str, Any]:
    """The spec of a job as the original defines it: with amounts in the place of `auto`, its limits after the cap, and
    metadata as strings. Objects in the metadata travel in `metadata_json` beside it. `variables` are for this task
    alone."""
    known = _spec_of(stored)
    fields: dict[str, Any] = {name: _whole_number(value) for name, value in msgspec.json.decode(stored).items()}
    fields |= {
        "type": known.type,
        "job_tier": known.job_tier,
        "slot_pool": known.request().pool,
        "node_count": max(1, known.node_count),
        "min_cpu_cores": math.ceil(known.min_cpu_cores),
        "max_runtime_hours": math.ceil(known.runtime_s() / 3600),
        "env": {**variables, **known.env},
        "gpu_count": known.gpu_count if reserved.gpus is None else reserved.gpus,
        "min_vram_gb": _amount(known.min_vram_gb, reserved.vram_mib),
        "min_memory_gb": _amount(known.min_memory_gb, reserved.memory_mib),
    }
    if blob := known.snapshot():
        fields["snapshot_sha"] = blob
    if check := known.health_check:
        seconds = math.ceil(check.interval_secs)
        fields["health_check"] = {"liveness": check.liveness, "readiness": check.readiness, "interval_secs": seconds}
    strings = {name: value for name, value in known.metadata.items() if isinstance(value, str)}
    fields["metadata"] = strings
    if rest := {name: value for name, value in known.metadata.items() if name not in strings}:
        fields["metadata_json"] = rest
    return fields


def label_of(stored: bytes) -> str:
    """What the job calls its snapshot."""
    return _spec_of(stored).snapshot_id


def _of(message: JobAssign) -> dict[str, Any]:
    """The spec is in its form already: a number within the user's own objects stays as the user wrote it."""
    around = msgspec.structs.replace(message, spec={})
    payload: dict[str, Any] = _whole(msgspec.to_builtins(around))
    return payload | {"spec": message.spec}


def _amount(gib: float | str, reserved_mib: int) -> float | int:
    found = reserved_mib / 1024 if reserved_mib or isinstance(gib, str) else gib
    return int(found) if found == int(found) else found


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return _whole_number(value)


def _whole_number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
