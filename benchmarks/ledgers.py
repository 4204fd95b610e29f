"""Both ledgers side by side, durable both: `python benchmarks/ledgers.py [--ledger URL] [--folder DIR]`.

The database must be empty, and is filled. Without one, a server is started as the tests do, beside the SQLite file on
the same disk. The client's own processor time is what a commit takes from the hub; a server's comes on top of it.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ledger import Ids, moved, spread, submitted

from ostler.ledger.base import Changes, Ledger
from ostler.ledger.postgres import PostgresLedger
from ostler.ledger.sqlite import SqliteLedger

NEW = range(1, 20_001)
NEW_ALONE = range(20_001, 20_501)
MOVED = NEW[:10_000]
MOVED_ALONE = NEW[10_000:10_500]


def rows_in(changes: Changes) -> int:
    return sum(len(getattr(changes, field)) for field in changes.__struct_fields__)


def write(ledger: Ledger, title: str, make: Callable[[range], Changes], seqs: range, batch: int) -> None:
    batches = [make(seqs[at : at + batch]) for at in range(0, len(seqs), batch)]
    took, used = [], time.process_time()
    for changes in batches:
        begun = time.perf_counter()
        ledger.commit(changes)
        took.append(time.perf_counter() - begun)
    used, whole = time.process_time() - used, sum(took)
    took.sort()
    print(
        f"  {title:20} in batches of {batch:4}: {len(batches) / whole:7,.0f} commits/s, "
        f"{sum(map(rows_in, batches)) / whole:9,.0f} rows/s, p50 {took[len(took) // 2] * 1e3:6.2f} ms, "
        f"p99 {took[int(len(took) * 0.99)] * 1e3:6.2f} ms, client {used / len(batches) * 1e3:6.2f} ms a commit"
    )


def read(ledger: Ledger, title: str, ask: Callable[[], Any], times: int = 50) -> None:
    begun = time.perf_counter()
    for _ in range(times):
        ask()
    print(f"  {title:42} {(time.perf_counter() - begun) / times * 1e3:8.2f} ms")


def measure(name: str, ledger: Ledger, ids: Ids = spread) -> None:
    print(name)
    write(ledger, "new jobs and feed", lambda seqs: submitted(ids, seqs), NEW, 1000)
    write(ledger, "to running", lambda seqs: moved(ids, seqs, "running", 1_000_000), MOVED, 1000)
    write(ledger, "to succeeded", lambda seqs: moved(ids, seqs, "succeeded", 2_000_000), MOVED, 1000)
    write(ledger, "new jobs and feed", lambda seqs: submitted(ids, seqs), NEW_ALONE, 1)
    write(ledger, "to running", lambda seqs: moved(ids, seqs, "running", 3_000_000), MOVED_ALONE, 1)
    read(ledger, "list_jobs, newest 100", ledger.list_jobs)
    read(ledger, "list_jobs, 100 of a user", lambda: ledger.list_jobs(user="user-7"))
    read(ledger, "jobs, one id", lambda: ledger.jobs([ids(7)]))
    read(ledger, f"load, {len(NEW) + len(NEW_ALONE) - len(MOVED):,} live jobs", ledger.load, 1)
    ledger.close()


def on_server(url: str) -> PostgresLedger:
    ledger = PostgresLedger(url)
    ledger.lead("benchmark", lease_s=600.0)
    return ledger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", metavar="URL", help="an empty PostgreSQL database")
    parser.add_argument("--folder", help="on which disk; the temporary folder if not given")
    asked = parser.parse_args()
    url = asked.ledger
    if not url:
        from tests.ledger.server import Server, installed

        programs = installed()
        if programs is None:
            sys.exit("no PostgreSQL server is installed; name one with --ledger")
        server = Server(programs, asked.folder or gettempdir(), shared_buffers="256MB", max_wal_size="1GB")
        url = server.new_database()
    with TemporaryDirectory(dir=asked.folder) as folder:
        measure("SQLite", SqliteLedger(Path(folder) / "ostler.db"))
    measure("PostgreSQL", on_server(url))


if __name__ == "__main__":
    main()
