"""How deep what others send is nested: whoever writes it out again, or reads it, nests its own calls as deep."""

import re

from ostler.domain.errors import BadInput

MAX_DEPTH = 32
# Each begins at a quote and ends at the next that is not escaped, or at the end: nothing is looked at twice.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*(?:"|\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def depth_of(body: bytes) -> int:
    """Of a JSON text; of one with few brackets, how many there are: it cannot be deeper."""
    few = body.count(b"[") + body.count(b"{")
    if few <= MAX_DEPTH:
        return few
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", body)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def must_be_shallow(body: bytes, where: str = "body") -> None:
    if depth_of(body) > MAX_DEPTH:
        raise BadInput(f"{where}: it is nested over {MAX_DEPTH} levels deep", [(where, "nested too deep")])
