"""Ports for what a test starts by itself: nobody takes one between its choice and its use.

They lie below those from which a system calls out and those that workers give to services, no two processes of a run of
the tests have the same to choose from, and each is chosen once before any is again.
"""

import itertools
import os
import random
import socket

_SHARES, _EACH, _FIRST = 10, 1000, 10_000
_share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SHARES
_ports = itertools.cycle(range(_FIRST + _share * _EACH, _FIRST + (_share + 1) * _EACH))
for _ in range(random.randrange(_EACH)):
    next(_ports)


def free_port() -> int:
    return next(port for port in itertools.islice(_ports, _EACH) if _is_free(port))


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what has ended is no hindrance
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True
