"""Names that the hub gives."""

import secrets
import time

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"


def new_job_id() -> str:
    """Sortable by time to the millisecond, unguessable in the rest: 10 + 8 characters without look-alikes."""
    return _base32(int(time.time() * 1000), 10) + _base32(secrets.randbits(40), 8)


def new_attempt_id() -> str:
    return secrets.token_hex(8)


def new_token_secret() -> str:
    """One that can be typed: a word that begins with a dash would be taken for an option."""
    while (secret := secrets.token_urlsafe(32)).startswith("-"):
        pass
    return secret


def _base32(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 32)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
