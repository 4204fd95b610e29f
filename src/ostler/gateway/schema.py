"""`[models]` and `[gateway]` as JSON Schema, for editors: made of the tables that the reader itself goes by."""

from typing import Any

from ostler.gateway import keys
from ostler.gateway.keys import (
    CALLER_KEYS,
    GATEWAY_KEYS,
    GROUP_KEYS,
    MODEL_KEYS,
    PEER_KEYS,
    Each,
    Keys,
    Number,
    OneOf,
    Read,
    Seconds,
    Whole,
)

Shape = dict[str, Any]
TEXT: Shape = {"type": "string", "pattern": r"^[^\u0000]*$"}
WORD: Shape = {"type": "string", "pattern": r"\S"}
DURATION: Shape = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([mM][sS]|[smhdSMHD])?\s*$"},
    ],
    "description": "Seconds, or such as '90s', '5m', '2h', '1d'.",
}
SIZE: Shape = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[kmgtpKMGTP]?([iI]?[bB])?\s*$"},
    ],
    "description": "Such as '512m', '8g', '1.5TiB'.",
}
PLAIN: Shape = {"type": ["string", "number", "boolean", "array", "object"]}
FILTERS: Shape = {
    "type": "object",
    "properties": {
        "strip": {"type": "array", "items": {**WORD, "not": {"const": "model"}}},
        "set": {"type": "object", "properties": {"model": False}},
    },
    "additionalProperties": False,
}
MACRO: Shape = {"type": "string", "pattern": r"\$\{[^{}]+\}"}
"""In place of any value: what it stands for is known to the hub alone."""

_SHAPES: dict[Read, Shape] = {
    keys.text: TEXT,
    keys.word: WORD,
    keys.flag: {"type": "boolean"},
    keys.table: {"type": "object"},
    keys.gib: SIZE,
    keys.gib_or_auto: {"anyOf": [{"const": "auto"}, SIZE]},
    keys.size: SIZE,
    keys.command: {
        "anyOf": [WORD, {"type": "array", "minItems": 1, "items": {"type": ["string", "number", "boolean"]}}]
    },
    keys.label: WORD,
    keys.env: {
        "type": "object",
        "propertyNames": {"pattern": r"^[^=\u0000]+$"},
        "additionalProperties": {"type": ["string", "number"]},
    },
    keys.plain_table: {"type": "object", "additionalProperties": PLAIN},
    keys.check_path: {"type": "string", "pattern": "^(none$|/)"},
    keys.filters: FILTERS,
    keys.loading_updates: {"enum": [True, False, "text"]},
    keys.origin: {"type": "string", "pattern": r"^\s*(\*|https?://[^/\s]+/?)\s*$"},
}

TOLD = {
    "cmd": "The server and its arguments. Text is split as a shell would, but there is no shell.",
    "cmd_stop": "What ends it, run beside it; may hold ${PORT} and ${PID}.",
    "port": "For servers that cannot be told theirs.",
    "env": "Variables of the server.",
    "vram": "Free memory of a GPU, or of each of its GPUs; 'auto': what its processes were seen to take.",
    "gpus": "GPUs for itself.",
    "memory": "Memory of the machine, or 'auto'.",
    "cpus": "Cores.",
    "labels": "Only on workers whose labels fit, such as 'zone = eu'.",
    "check": "A path that must answer well before a request is sent, or 'none'.",
    "load_timeout": "A load that takes longer has failed.",
    "stop_timeout": "From SIGTERM to SIGKILL.",
    "load_s": "What a load takes, until one was measured.",
    "ttl": "Unloaded after being idle for so long; 0: never.",
    "pinned": "Makes room for no other model and no job.",
    "concurrency": "Requests that it serves at once; others wait.",
    "queue_limit": "Requests that may wait; beyond it, 429.",
    "request_limit": "Requests that it may have, served and waiting ones together; beyond it, 429.",
    "priority": "Whose requests go first among those that wait.",
    "max_instances": "Processes of it at once.",
    "aliases": "Other names for it.",
    "upstream_name": "What its server wants to be called by.",
    "filters": "Fields taken out of a request's JSON (strip), and put into it (set).",
    "on_client_abort": "What becomes of a request whose caller hung up.",
    "loading_updates": "A stream gets while its model loads: comments (true), text that a chat shows, or nothing.",
    "name": "A title, for GET /v1/models.",
    "description": "For GET /v1/models.",
    "metadata": "For GET /v1/models, under meta.",
    "unlisted": "Not in GET /v1/models; it can be called all the same.",
    "scheduler": "serial: one request at a time; fifo: as many as fit.",
    "groups": "Models that swap with each other, by the group's name.",
    "sets": "Models that may be loaded together.",
    "evict_costs": "How much more than another it costs to evict a model.",
    "quantum": "How long a model that is used keeps its turn, in units of what the swap costs.",
    "preload": "Loaded when the hub starts.",
    "api_keys": "Who may call beside the users with their tokens.",
    "peers": "Other OpenAI-compatible servers.",
    "url": "Where it is reached.",
    "macros": "Values to be written as ${NAME} elsewhere.",
    "max_body": "Of a request.",
    "cors_origins": "Origins of the pages that may call the gateway from a browser, such as 'https://chat.example'.",
}


def models() -> Shape:
    model = table(MODEL_KEYS)
    return {"type": "object", "additionalProperties": {**model, "required": ["cmd"]}}


def gateway() -> Shape:
    group, peer = table(GROUP_KEYS), table(PEER_KEYS)
    caller = {**table(CALLER_KEYS), "anyOf": [{"required": ["key"]}, {"required": ["key_env"]}]}
    return table(
        GATEWAY_KEYS,
        groups={"type": "object", "additionalProperties": {**group, "required": ["members"]}},
        evict_costs={"type": "object", "additionalProperties": _or_macro(shape_of(Number(0)))},
        peers={"type": "object", "additionalProperties": {**peer, "required": ["url", "models"]}},
        api_keys={"type": "array", "items": {"anyOf": [WORD, caller]}},
        macros={
            "type": "object",
            "propertyNames": {"pattern": "^[A-Za-z0-9_-]{1,63}$"},
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        },
    )


def table(known: Keys, **shapes: Shape) -> Shape:
    """A table with these keys and no others; `shapes` for those of which more is known than how they are read."""
    properties = {
        name: {"description": TOLD.get(name, ""), **(shapes.get(name) or _or_macro(shape_of(key.read)))}
        for name, key in known.items()
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def shape_of(read: Read) -> Shape:
    match read:
        case Whole(low, high):
            return {"type": "integer", "minimum": low, "maximum": high}
        case Number(low):
            return {"type": "number", "minimum": low}
        case Seconds(some):
            return DURATION if not some else {**DURATION, "not": {"const": 0}}
        case OneOf(choices):
            return {"enum": list(choices)}
        case Each(one):
            return {"type": "array", "items": _or_macro(shape_of(one))}
        case _:
            return _SHAPES[read]


def _or_macro(shape: Shape) -> Shape:
    return shape if shape in (TEXT, WORD) else {"anyOf": [shape, MACRO]}
