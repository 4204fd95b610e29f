"""Secrets in what tasks print: covered where they show as they are, by the line, in base64, or escaped for an address.

As well as can be: whoever splits a secret, turns it around or encodes it otherwise prints it. Every byte is covered by
another one, so that a log keeps its length and every place in it.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, quote_plus

LEAST = 6
"""A shorter piece would be found in words that are none."""
MOST_LINES = 100
"""Of one secret, that are looked for by themselves."""
COVER = b"*"


class Redactor:
    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._forms = {form for secret in secrets for form in _forms(secret) if len(form) >= LEAST}
        self.longest = max(map(len, self._forms), default=0)
        """No form is longer: whoever cuts a text into pieces looks at so much on either side."""
        sizes: dict[bytes, set[int]] = {}
        for form in self._forms:
            sizes.setdefault(form[:LEAST], set()).add(len(form))
        # The longest first: a secret may begin with another one.
        self._sizes = {head: sorted(found, reverse=True) for head, found in sizes.items()}
        # Only for how they begin: the time that a text takes does not grow with how many they are, or how long.
        self._heads = re.compile(_any_of(list(sizes))) if sizes else None
        self._beginnings = {head[:size] for head in sizes for size in range(1, LEAST)}

    def covered(self, data: bytes) -> bytes:
        hit = self._heads.search(data) if self._heads is not None else None
        if self._heads is None or hit is None:
            return data
        found = bytearray(data)
        while hit is not None:
            start, sizes = hit.start(), self._sizes[hit[0]]
            form = next((one for size in sizes if (one := data[start : start + size]) in self._forms), b"")
            found[start : start + len(form)] = COVER * len(form)
            hit = self._heads.search(data, start + (len(form) or 1))
        return bytes(found)

    def text(self, text: str) -> str:
        return self.covered(text.encode(errors="surrogateescape")).decode(errors="replace")

    def held_back(self, data: bytes) -> int:
        """How many bytes at its end may be the beginning of one, of which the rest has not been printed yet."""
        short = [size for size in range(1, LEAST) if data[-size:] in self._beginnings]
        return max((_begun(form, data) for form in self._forms), default=0) or max(short, default=0)


def _begun(form: bytes, data: bytes) -> int:
    """How much of it, if not all, stands at the end of this: a few bytes are none."""
    at = data.find(form[:LEAST], max(0, len(data) - len(form) + 1))
    while at >= 0:
        if form.startswith(data[at:]):
            return len(data) - at
        at = data.find(form[:LEAST], at + 1)
    return 0


def _any_of(heads: Sequence[bytes]) -> bytes:
    """A pattern for them, told apart byte by byte; they are of one length."""
    if len(heads) == 1:
        return re.escape(heads[0])
    rests: dict[bytes, list[bytes]] = {}
    for head in heads:
        rests.setdefault(head[:1], []).append(head[1:])
    return b"|".join(re.escape(first) + b"(?:" + _any_of(rest) + b")" for first, rest in rests.items())


def _forms(secret: bytes) -> set[bytes]:
    lines = [line.strip() for line in secret.split(b"\n")]
    found: set[bytes] = set()
    for one in filter(None, (secret, secret.strip(), *lines[:MOST_LINES])):
        found |= {one, quote(one).encode(), quote_plus(one).encode(), quote(one, safe="").encode()}
        found |= _in_base64(one)
    return found


def _in_base64(data: bytes) -> set[bytes]:
    """Alone, and in the midst of something: what is the same whatever stands before and behind it."""
    found = set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(data)
        found |= {whole, whole.rstrip(b"=")}
        for before in range(3):
            inner = encode(b"\0" * before + data)
            first = -(-before * 8 // 6)
            last = (before + len(data)) * 8 // 6
            found.add(inner[first:last])
    return found
