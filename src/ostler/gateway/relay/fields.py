"""The two fields of a JSON body that the relay must know, and the changes that a model's configuration asks for.

The decoder skips every value but those two without making anything of it: 0.2 µs for a short chat, 0.5 ms for a
megabyte of messages, 0.3 ms for a megabyte of image: less than to search for the word. Names with escapes, the same
words deeper inside, and repeated names, of which the last counts, come out as for everybody who parses.
"""

import json
from typing import Any

import msgspec

from ostler.gateway.control import ModelSetup
from ostler.gateway.relay.body import Contents

NO_MODEL = "the body has no field `model`; name one of those that GET /v1/models lists"
NO_NAME = "no name"
"""Itself, and none that is spelt like it."""
# Half a surrogate pair (an emoji cut in two) and NaN are common enough, and most model servers take them.
TOO_STRICT = (msgspec.MsgspecError, UnicodeDecodeError)
SLOWLY_BYTES = 4 * 1024 * 1024
"""No more than this is read by whoever takes these, and takes longer for all of it."""


class NotReadable(Exception):
    """The body is not a JSON object with a `model` that is a string; the text says what it is."""


class Named(msgspec.Struct, gc=False):
    model: str = NO_NAME
    stream: bool | None = False
    """None, as some clients say it: no."""


_named = msgspec.json.Decoder(Named).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def named(body: Contents) -> Named:
    """The model that a body names, and whether it asks for a stream."""
    try:
        found = _named(body)
    except TOO_STRICT:
        return _named_slowly(body)
    except RecursionError:
        raise NotReadable("the body is nested too deeply") from None
    if found.model is NO_NAME:
        raise NotReadable(NO_MODEL)
    found.stream = bool(found.stream)
    return found


def _named_slowly(body: Contents) -> Named:
    if len(body) > SLOWLY_BYTES:
        # Everybody else waits meanwhile, and it takes many times as much memory.
        raise NotReadable("the body is not JSON by its own rules (NaN, or half a character), and too large for others")
    fields = _object(body)
    if "model" not in fields:
        raise NotReadable(NO_MODEL)
    if not isinstance(fields["model"], str):
        raise NotReadable("the field `model` must be a string")
    return Named(fields["model"], fields.get("stream") is True)


def _object(body: Contents) -> dict[str, Any]:
    try:
        fields = json.loads(bytes(body))
    except ValueError as error:
        raise NotReadable(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise NotReadable("the body is nested too deeply") from None
    if not isinstance(fields, dict):
        raise NotReadable("the body must be a JSON object")
    return fields


def rewritten(body: Contents, setup: ModelSetup) -> bytes:
    """The body with what the model's configuration strips and sets; other values stay the caller's bytes."""
    wanted = {name: value for name, value in setup.filters.set.items() if name != "model"}
    if setup.upstream_name:
        wanted["model"] = setup.upstream_name
    unwanted = set(setup.filters.strip) - {"model"}
    try:
        fields: dict[str, Any] = {name: raw for name, raw in _fields(body).items() if name not in unwanted}
        return msgspec.json.encode(fields | wanted)
    except TOO_STRICT:
        kept = {name: value for name, value in _object(body).items() if name not in unwanted}
        return json.dumps(kept | wanted).encode()
