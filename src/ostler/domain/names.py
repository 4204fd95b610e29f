"""What a worker may be called: its name is also the name of a folder, of a service, and of a token's user."""

import re

from ostler.domain.errors import BadInput

_WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TAKEN = ("worker",)
"""A token of this user serves any worker."""


def worker_name(text: str) -> str:
    """The name, where it is one."""
    if _WORKER.fullmatch(text) is None:
        raise BadInput(
            f"name: {text!r} cannot be a worker's name; it may have letters, digits, '.', '_' and '-'",
            [("name", "not a name")],
        )
    if text in TAKEN:
        raise BadInput(f"name: {text!r} stands for any worker; give this one a name of its own", [("name", "taken")])
    return text
