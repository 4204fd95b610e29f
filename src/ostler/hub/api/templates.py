"""A team's usual jobs by name: a submitted spec that names a template is laid over it, before anything is judged."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ostler.domain.errors import BadInput
from ostler.domain.job import MAX_SPEC_BYTES
from ostler.domain.quantities import AUTO
from ostler.hub.settings import Template, nearest

MERGED = ("env", "metadata")
ADDED = ("labels",)
FIRST = {"min_vram_gb": "first_vram_gb", "min_memory_gb": "first_memory_gb"}
"""Where the spec leaves an amount open, the template's is what is asked for while nothing is known."""


class _Named(msgspec.Struct):
    template: str = ""


_named = msgspec.json.Decoder(_Named)


class Templates:
    def __init__(self, known: Mapping[str, Template]) -> None:
        self._known = known

    def resolve(self, spec: bytes, where: str = "") -> bytes:
        """The whole spec; one that names no template, or cannot be read, as it came."""
        if b"template" not in spec and b"\\" not in spec:
            return spec  # the word can be spelled with escapes, too
        if len(spec) > MAX_SPEC_BYTES:
            return spec  # refused for that by whoever reads it
        try:
            name = _named.decode(spec).template
            given = msgspec.json.decode(spec) if name else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return spec  # what is wrong with it is said by whoever reads all of it
        if not name:
            return spec
        if name not in self._known:
            what = f"there is no template {name[:64]!r}{_instead(name, self._known)}"
            raise BadInput(f"{where}template: {what}", [(f"{where}template", what)])
        return msgspec.json.encode(laid_over(self._known[name], given))


def laid_over(template: Template, spec: dict[str, Any]) -> dict[str, Any]:
    """What the spec says goes before what the template says; variables and labels of both hold."""
    whole = {**template, **spec}
    for field in MERGED:
        ours, theirs = template.get(field), spec.get(field)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            whole[field] = {**ours, **theirs}
    for field in ADDED:
        ours, theirs = template.get(field), spec.get(field)
        if isinstance(ours, list) and isinstance(theirs, list):
            whole[field] = [*ours, *(label for label in theirs if label not in ours)]
    for field, first in FIRST.items():
        if spec.get(field) == AUTO and isinstance(template.get(field), int | float):
            whole.setdefault(first, template[field])
    return whole


def _instead(name: str, known: Mapping[str, Template]) -> str:
    if not known:
        return "; this hub has none (its operator writes them into ostler.toml)"
    listed = f"known are {', '.join(sorted(known))}"
    close = nearest(name, known)
    return f"{close} {listed}" if close.endswith("?") else f"; {listed}"
