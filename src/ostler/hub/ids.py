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
    at, rest = int(time.time() * 1000), int.from_bytes(os.urandom(5), "big")
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


def given_here(job_id: str, submitted_at: float) -> bool:
    """Whether it is one of ours: such an id is never chosen by anybody, so that nobody comes back with it."""
    if len(job_id) != 18 or not set(job_id).issubset(_DIGITS):
        return False
    made_at = 0
    for digit in job_id[:10]:
        made_at = made_at * 32 + _DIGITS.index(digit)
    return abs(made_at / 1000 - submitted_at) < CLOCKS_APART_S


_AT_ONCE = 256
_unused: list[str] = []
"""Ids of attempts that are to come: the kernel is asked for as many at once as it gives for the price of one."""


def new_attempt_id() -> str:
    if not _unused:
        drawn = os.urandom(8 * _AT_ONCE).hex()
        _unused.extend(drawn[at : at + 16] for at in range(0, len(drawn), 16))
    return _unused.pop()


def new_token_secret() -> str:
    """One that can be typed: a word that begins with a dash would be taken for an option."""
    while (secret := secrets.token_urlsafe(32)).startswith("-"):
        pass
    return secret
