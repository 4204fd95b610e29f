"""What one entry of the advice holds."""

from typing import NamedTuple

ANSWER, EXIT, PYTHON, REASON = "an answer of the hub", "an exit code", "an exception in Python", "how a job ended"
GATEWAY = "an answer of the gateway"


class Advice(NamedTuple):
    name: str
    kind: str
    sign: str
    """By what it is known: a status and a title, a number, a class, or the pattern of a reason."""
    happened: str
    act: str
