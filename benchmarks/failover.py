"""Leaders that die: `python -m benchmarks.failover [--rounds N] [--workers N] [--seed S] [--plain]`.

Two real hubs on one real PostgreSQL ledger and real workers, under load: short jobs one by one, and long tasks that run
through all of it. In each round the leader is killed, paused until the other has led for a while, or told to stop. A
paused one has a submit waiting for it when it goes on, as from a client that knows of nothing else. At the end every
acknowledged job must be there once and have ended well, no long task may have begun twice, and none of those submits
may have been taken. The exit code is 1 if anything of that is not so.
"""

import argparse
import logging
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.diary import Diary
from tests.e2e.two_hub_fleet import HURRIED, REFUSED, TAKES_OVER_S, Submitter, TwoHubFleet, two_hub_fleet
from tests.ledger.server import server
from tests.process_fleet import OSTLER, until, usable

LONG_TASKS = 6
LEADS_FOR_S = (0.5, 3.0)
LONGEST_S = 5.0
"""From a leader's death to another that leads."""


class Campaign:
    def __init__(self, fleet: TwoHubFleet, diary: Diary, draw: random.Random) -> None:
        self.fleet = fleet
        self.took: dict[str, list[float]] = {"kill -9": [], "SIGSTOP": [], "SIGTERM": []}
        self.late: list[tuple[str, Future[Any]]] = []
        self._diary = diary
        self._draw = draw
        self._faults: dict[str, Callable[[str], None]] = {
            "kill -9": self._kill,
            "SIGSTOP": self._pause,
            "SIGTERM": self._terminate,
        }
        self._asking = ThreadPoolExecutor(16)
        self.long: str = fleet.hub.submit(diary.spec(array=LONG_TASKS))["id"]
        self.tasks = [f"{self.long}.{index}" for index in range(LONG_TASKS)]
        diary.await_begun(*self.tasks)

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            fault = self._draw.choice(list(self._faults))
            leader = self.fleet.leader()
            self._faults[fault](leader)
            until(lambda: all(map(usable, self.fleet.hub.workers())), "the workers have moved", TAKES_OVER_S)
            print(f"round {number + 1:3}: {fault:8} {leader}; followed after {self.took[fault][-1]:.2f} s", flush=True)
            time.sleep(self._draw.uniform(*LEADS_FOR_S))

    def _kill(self, leader: str) -> None:
        self.fleet.kill(leader)
        self._followed("kill -9", leader)
        self.fleet.start_again(leader)

    def _terminate(self, leader: str) -> None:
        begun = time.monotonic()
        self.fleet.terminate(leader)
        self._followed("SIGTERM", leader, begun)
        self.fleet.start_again(leader)

    def _pause(self, leader: str) -> None:
        self.fleet.pause(leader)
        self._followed("SIGSTOP", leader)
        name = f"late-{len(self.late)}"
        spec = f'{{"command": ["true"], "name": "{name}"}}'.encode()
        self.late.append((name, self._asking.submit(self.fleet.get, leader, "/v1/jobs", TAKES_OVER_S, data=spec)))
        time.sleep(self._draw.uniform(*LEADS_FOR_S))
        self.fleet.go_on(leader)
        self.fleet.await_role(leader, "standby")

    def _followed(self, fault: str, leader: str, begun: float | None = None) -> None:
        begun = begun or time.monotonic()
        self.fleet.await_role(self.fleet.other(leader), "leader")
        self.took[fault].append(time.monotonic() - begun)

    def end(self) -> None:
        self._diary.open(*range(LONG_TASKS))
        until(lambda: self.fleet.hub.job(self.long)["state"] == "succeeded", "the long tasks have ended", TAKES_OVER_S)


def report(campaign: Campaign, load: Submitter, diary: Diary) -> bool:
    fleet = campaign.fleet
    print()
    for fault, took in campaign.took.items():
        if took:
            after = f"{statistics.median(took):.2f} s, at most {max(took):.2f} s"
            print(f"{fault:8} {len(took):4} times: followed after {after}")
    jobs = Counter(job["id"] for job in fleet.hub.all_jobs())
    states = Counter(fleet.client.wait(job_id, timeout=TAKES_OVER_S)["state"] for job_id in load.acknowledged)
    lost = [job_id for job_id in load.acknowledged if job_id not in jobs]
    began = diary.seen("begin")
    taken = [name for name, _ in campaign.late if list(fleet.hub.all_jobs(name=name))]
    answered = 0
    for _, asked in campaign.late:
        with suppress(OSError):
            answered += asked.result(TAKES_OVER_S)[0] < 300
    refused = sum((fleet.folder / f"{name}.log").read_text().count(REFUSED) for name in fleet.urls)
    term = fleet.health(fleet.leader())["term"]
    print(f"term {term}; leaders that were refused for their term: {refused} of {len(campaign.took['SIGSTOP'])} paused")
    print(f"writes of former leaders that were taken: {len(taken)}, acknowledged: {answered}")
    print(f"acknowledged jobs: {len(load.acknowledged):,}, lost: {len(lost)}, ended: {dict(states)}")
    print(f"longest time without an acknowledgement: {load.longest_gap_s:.2f} s")
    print(f"long tasks: {len(campaign.tasks)}, begun more than once: {sum(count > 1 for count in began.values())}")
    restarted = any(count > 1 for count in began.values())
    sound = not (lost or taken or answered or restarted) and set(states) == {"succeeded"}
    sound = sound and refused == len(campaign.took["SIGSTOP"])
    print("sound" if sound else "NOT SOUND")
    slow = max(took for one in campaign.took.values() for took in one)
    print(f"followed within {LONGEST_S:g} s: {'always' if slow <= LONGEST_S else 'not always'}")
    return sound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="workers with the times that they have elsewhere")
    options = parser.parse_args()
    logging.getLogger("ostler.client").setLevel(logging.ERROR)
    with TemporaryDirectory(prefix="ostler-failover-") as folder:
        names = [f"box-{number}" for number in range(options.workers)]
        program = OSTLER if options.plain else HURRIED
        with two_hub_fleet(Path(folder), server().new_database(), *names, program=program) as fleet:
            diary = Diary(Path(folder) / "diary")
            campaign, load = Campaign(fleet, diary, random.Random(options.seed)), Submitter(fleet)
            campaign.run(options.rounds)
            load.stop()
            campaign.end()
            return 0 if report(campaign, load, diary) else 1


if __name__ == "__main__":
    sys.exit(main())
