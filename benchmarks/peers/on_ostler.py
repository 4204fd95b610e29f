"""Ostler, measured as the others are: hub and worker as processes of their own, this one is the client."""

from importlib.metadata import version

from benchmarks.commits import two_commits_ms
from benchmarks.peers.measure import Peer, measure, tell
from benchmarks.process_fleet import (
    array_submits,
    bare_spawns,
    batched_submits,
    calls,
    hub,
    one_job,
    state_folder,
    true_jobs,
    worker,
)

BARE = 2000
"""Process starts without any scheduler, a moment before W1: that is a part of what the machine can do by then."""


def nothing(number: int) -> int:
    return number


def main() -> None:
    with state_folder() as state:
        tell(two_commits_ms=two_commits_ms(state), bare_per_s=bare_spawns(BARE))
        with hub(state) as (client, process, url), worker(state, client, url, slots=2):
            peer = Peer(
                version=version("ostler"),
                setup="as installed: SQLite with synchronous=FULL, acknowledged after the commit; a worker of 2 slots; "
                "jobs in batches of 500 specs, calls by `map`",
                jobs=lambda count: true_jobs(client, count),
                calls={"map": lambda count: calls(client, nothing, count)},
                once=lambda: one_job(client),
                queue={
                    "batches of 1,000 specs": lambda count: batched_submits(client, count),
                    "arrays of 10,000": lambda count: array_submits(client, count),
                },
                processes=[process.pid],
            )
            measure(peer)


if __name__ == "__main__":
    main()
