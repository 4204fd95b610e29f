"""What one owner takes of a worker."""

import msgspec

from ostler.domain.resources import Grant, Request


class Holding(msgspec.Struct, frozen=True):
    cores_milli: int = 0
    memory_mib: int = 0
    pool: str = "batch"
    grant: Grant = Grant()


NOTHING = Holding(pool="")
"""Of one that has no process here: it is yet to begin, or what it had is another's already."""


def holding(request: Request, grant: Grant) -> Holding:
    return Holding(request.cores_milli, request.memory_mib, request.pool, grant)
