"""Names that the hub gives."""

import os
import secrets
import time

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
"""Ten bits each: a long queue is made of a million ids."""
CLOCKS_APART_S = 600.0
"""Between the moment at which an id is made and that at which its job is written down."""


def new_job_id() -> str:
    """Sortable by time to the millisecond, unguessable in the rest: 10 + 8 characters without look-alikes."""
    at, rest = int(time.time() * 1000), _drawn_40_bits()
    return (
        _PAIRS[at >> 40 & 1023]
        + _PAIRS[at >> 30 & 1023]
        + _PAIRS[at >> 20 & 1023]
        + _PAIRS[at >> 10 & 1023]
        + _PAIRS[at & 1023]
        + _PAIRS[rest >> 30]
        + _PAIRS[rest >> 20 & 1023]
        + _PAIRS[rest >> 10 & 1023]
        + _PAIRS[rest & 1023]
    )


_AT_ONCE = 256
"""The kernel is asked for as many at once as it gives for the price of one."""
_drawn: list[int] = []


def _drawn_40_bits() -> int:
    if not _drawn:
        data = os.urandom(5 * _AT_ONCE)
        _drawn.extend(int.from_bytes(data[first : first + 5], "big") for first in range(0, len(data), 5))
    return _drawn.pop()


def given_here(job_id: str, submitted_at: float) -> bool:
    """Whether it is one of ours: such an id is never chosen by anybody, so that nobody comes back with it."""
    if len(job_id) != 18 or not set(job_id).issubset(_DIGITS):
        return False
    made_at = 0
    for digit in job_id[:10]:
        made_at = made_at * 32 + _DIGITS.index(digit)
    return abs(made_at / 1000 - submitted_at) < CLOCKS_APART_S


_unused: list[str] = []
"""Ids of attempts that are to come, the next one last."""


def new_attempt_id() -> str:
    """About in the order of time, so that the ledger's index of them grows at its end and not everywhere; unguessable
    in the rest. 8 + 12 hexadecimal digits: milliseconds that begin anew after 49 days, and 48 bits."""
    if not _unused:
        drawn, at = os.urandom(6 * _AT_ONCE).hex(), f"{int(time.time() * 1000) & 0xFFFFFFFF:08x}"
        _unused.extend(sorted((at + drawn[first : first + 12] for first in range(0, len(drawn), 12)), reverse=True))
    return _unused.pop()


def new_token_secret() -> str:
    """One that can be typed: a word that begins with a dash would be taken for an option."""
    while (secret := secrets.token_urlsafe(32)).startswith("-"):
        pass
    return secret
