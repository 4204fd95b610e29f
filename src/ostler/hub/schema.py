"""`ostler.toml` as JSON Schema, for editors: of the same structs and tables of keys that the settings are read by."""

from typing import Any

import msgspec

from ostler.domain.job import JobSpec
from ostler.domain.notices import EVENTS, NAME, TOPIC
from ostler.domain.quota import Quota
from ostler.domain.retention import NEVER, Retention
from ostler.gateway import schema as gateway
from ostler.gateway.schema import DURATION, SIZE, WORD, Shape
from ostler.hub.settings import KEYS, MAX_WEIGHT, NOT_IN_A_TEMPLATE, S3_KEYS, TABLES
from ostler.hub.web.limits import Limits
from ostler.manifest.schema import DIALECT

_REFERENCE = "#/definitions/{name}"
_ADDRESS: Shape = {"type": "string", "pattern": "^https?://"}

TOLD = {
    "templates": "A team's usual jobs, by name: any fields of a spec.",
    "quotas": "How much one user may have at a time; 0 or left out: no limit.",
    "scheduling": "When machines are held for a job that waits, what an hour on a device counts, how long claims live.",
    "retention": "For how long what has ended is kept, counted from its end.",
    "limits": "How often one may ask.",
    "disk": "Where less than the reserve is free, nothing new is taken in.",
    "s3": "Of a store in a bucket, what AWS_* variables do not say.",
    "notify": "Who is told what became of jobs.",
    "models": "What the gateway serves.",
    "gateway": "How the gateway serves it.",
    "worker": "What a worker that is started with this file goes by.",
    "ledger": "postgresql://USER@HOST/DATABASE, in place of a file in the state folder.",
    "store": "Where logs and artifacts are: a folder, or s3://bucket/prefix.",
    "url": "Where others reach this hub.",
    "hosts": "What else it is called.",
    "tls": "'auto': an authority and certificates of its own.",
    "tls_cert": "The hub's certificate, a file.",
    "tls_key": "The key of that, a file.",
}


def schema() -> Shape:
    definitions: dict[str, Shape] = {}
    shapes = {
        "templates": {"type": "object", "additionalProperties": _template(definitions)},
        "quotas": _quotas(definitions),
        "scheduling": _scheduling(),
        "retention": _table({name: _kept(name) for name in Retention.__struct_fields__}),
        "limits": {**_struct(Limits, definitions), "additionalProperties": False},
        "disk": _table({"reserve": SIZE}),
        "s3": _table({name: _ADDRESS if name.endswith("endpoint") else {"type": "string"} for name in S3_KEYS}),
        "notify": _notify(),
        "models": gateway.models(),
        "gateway": gateway.gateway(),
        "hosts": {"type": "array", "items": WORD},
        "worker": {"type": "object"},
        "tls": {"enum": ["auto", ""]},
    }
    properties = {
        name: {
            "description": TOLD.get(name, ""),
            **shapes.get(name, {"type": "object" if name in TABLES else "string"}),
        }
        for name in KEYS
    }
    top = {"$schema": DIALECT, "title": "ostler.toml", **_table(properties)}
    return {**top, "definitions": definitions}


def _table(properties: dict[str, Any]) -> Shape:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _struct(kind: type[Any], definitions: dict[str, Shape]) -> Shape:
    """The struct's own shape; what it refers to is put among the definitions."""
    _, found = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    own: Shape = found.pop(kind.__name__)
    definitions |= found
    return own


def _template(definitions: dict[str, Shape]) -> Shape:
    spec = _struct(JobSpec, definitions)
    fields = {name: shape for name, shape in spec["properties"].items() if name not in NOT_IN_A_TEMPLATE}
    return _table(fields)


def _quotas(definitions: dict[str, Shape]) -> Shape:
    quota = _struct(Quota, definitions)
    return _table({**quota["properties"], "users": {"type": "object", "additionalProperties": quota}})


def _scheduling() -> Shape:
    weight = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WEIGHT}
    return _table(
        {
            "hold_after": {"anyOf": [DURATION, {"const": NEVER}]},
            "claim_lease": DURATION,
            "weights": {"type": "object", "additionalProperties": weight},
        }
    )


def _kept(name: str) -> Shape:
    amount = SIZE if name.startswith("most_") else DURATION
    if name == "most_jobs":
        amount = {"type": "integer", "minimum": 0}
    return {"anyOf": [amount, {"const": NEVER}]}


def _notify() -> Shape:
    target = _table(
        {
            "url": _ADDRESS,
            "topic": {"type": "string", "pattern": f"^{TOPIC.pattern}$"},
            "command": {"type": "array", "minItems": 1, "items": {"type": "string"}},
            "on": {"type": "array", "items": {"enum": list(EVENTS)}},
            "every": {"type": "boolean"},
        }
    )
    target["oneOf"] = [{"required": [name]} for name in ("url", "topic", "command")]
    names = {"pattern": f"^{NAME.pattern}$"}
    return _table(
        {
            "targets": {"type": "object", "propertyNames": names, "additionalProperties": target},
            "allow": {"type": "array", "items": {"type": "string"}},
            "ntfy": _ADDRESS,
        }
    )
