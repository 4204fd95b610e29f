"""How long a hub that was killed takes until it answers again, with a long queue in its ledger."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from benchmarks.ledger import ordered, submitted
from tests.protocol.process_hub import ProcessHub

from ostler.ledger.sqlite import SqliteLedger

JOBS = 100_000
AT_ONCE = 10_000
TIMES = 3
BOUND_S = 5.0


def restarts(jobs: int = JOBS, times: int = TIMES) -> list[tuple[float, float]]:
    """Seconds from the start of the process until it listens, and how many of them a core worked for it; each time
    after `kill -9`."""
    found: list[tuple[float, float]] = []
    with TemporaryDirectory(prefix="crash-", ignore_cleanup_errors=True) as folder:
        ledger = SqliteLedger(Path(folder) / "ostler.db")
        for first in range(1, jobs + 1, AT_ONCE):
            ledger.commit(submitted(ordered, range(first, min(first + AT_ONCE, jobs + 1))))
        ledger.close()
        hub = ProcessHub(Path(folder))
        for _ in range(times):
            begun = time.monotonic()
            hub.start()
            worked = psutil.Process(hub.pid).cpu_times()
            found.append((time.monotonic() - begun, worked.user + worked.system))
            hub.kill()
    return found
