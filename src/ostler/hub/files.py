"""How many files the hub may have open: every connection is one, and without any left it could not write its ledger."""

import contextlib
import logging
import sys

RESERVED = 256
"""Kept for the ledger, for logs and for uploads: no connection may take these."""
ENOUGH = (1 << 20, 1 << 16, 10_240)
FEW = 4096

_log = logging.getLogger("ostler.hub")


def raise_limit() -> int:
    """As many as the system allows; how many connections that leaves room for."""
    if sys.platform == "win32":
        return 1 << 20
    import resource

    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in ENOUGH:
        # Where there is no limit, or one that is not kept to, the system says so only when it is asked for too much.
        with contextlib.suppress(OSError, ValueError):
            wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), most))
            break
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FEW:
        _log.warning(
            "this hub may open %d files, which is enough for about %d workers and callers; for more, raise the limit "
            "(LimitNOFILE= of its systemd unit, or `ulimit -Hn`)",
            soft,
            room_for(soft),
        )
    return room_for(soft)


def room_for(limit: int) -> int:
    return max(limit - RESERVED, limit // 2)
