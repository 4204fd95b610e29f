"""Jobs of every shape on four machines: the first kind of work.

Two training jobs hold the big box, a big job waits behind them and small ones pass it, an array and Python functions
run wherever there is room, one job fits nowhere, and three go on while the Mac's worker is dead. Files that the demo
creates decide the order in which tasks end, so the comparison depends on the order of events and on no speed.
"""

from collections.abc import Callable
from typing import Any

from examples.demo.board import Row
from examples.demo.expectations import Expectation
from examples.demo.progress import Progress

import ostler
from ostler.client.job import Job
from ostler.client.resources import Resources

Document = dict[str, Any]
SMALL_NAMES = [f"pair-{number}" for number in range(4)]
LONG_NAMES = [f"long-{number}" for number in range(3)]
FUNCTIONS = 6
FIRST_START = 27


class Jobs:
    """Submits the jobs, opens their gates in order, and compares their ends."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._fleet = progress.fleet
        self._expected: dict[str, Expectation] = {}

    # Steps, in the order of the demo

    def hold_the_big_box(self) -> None:
        """Fills all GPUs of the big box, and then submits a job that needs all of them."""
        for number in range(2):
            name = f"train-{number}"
            needs: Resources = {"gpu": 4, "vram": "160g", "backend": "nvidia"}
            job = self._client.submit_command(
                self._fleet.make_gated_command("trainings", name), name=name, tier="training", resources=needs
            )
            self._expect(name, job.id, "4 GPUs with 160 GiB: only the big box", workers=("big-gpu",))
        trainings = self._ids("train-0", "train-1")
        self._progress.wait_until_running(trainings, "the two training jobs to run")
        self._command("big", "8 GPUs: waits for the whole big box", "sleep 1", "--gpus", "8", workers=("big-gpu",))
        self._progress.say("two training jobs hold the big box; a job that needs all of it waits behind them")

    def submit_others(self) -> None:
        for number, name in enumerate(SMALL_NAMES):
            needs: Resources = {"cpu": 2, "labels": ["zone = basement"], "backend": "cpu"}
            job = self._client.submit_command(["sleep", f"{0.5 + number / 4}"], name=name, resources=needs)
            self._expect(name, job.id, "2 of the CPU server's 4 cores", workers=("cpu",))
        for number in range(2):
            self._submit_sleep(f"small-{number}", "1 RTX4090", "small-gpu", {"gpu": 1, "gpu_type": "rtx4090"})
        self._command("metal", "a Metal GPU", "sleep 1", "--backend", "metal", "--gpus", "1", workers=("mac",))
        for number in range(2):
            needs = {"vram": "20g", "backend": "metal"}
            self._submit_sleep(f"share-{number}", "20 GiB of a Metal GPU, shared with others", "mac", needs)
        self._submit_array()
        self._command("fails", "exits with 3", "echo no such data set >&2; exit 3", state="failed", exit_code=3)
        self._command(
            "nowhere",
            "100 cores: fits nowhere",
            "true",
            *("--cpus", "100", "--schedule-timeout", "3s"),
            state="unschedulable",
            check=check_reason,
        )
        for start in range(FIRST_START, FIRST_START + FUNCTIONS):
            name, steps = f"collatz-{start}", count_collatz_steps(start)
            function = self._client.submit(count_collatz_steps, start, name=name)
            self._expect(
                name, function.id, f"a Python function that returns {steps}", check=check_value(function, steps)
            )
        self._progress.say(f"{len(self._expected)} jobs submitted, from the command line and from Python")

    def let_the_big_one_run(self) -> None:
        """Ends the training jobs only after the small jobs have passed the big one."""
        small, big = self._ids(*SMALL_NAMES), self._ids("big")
        self._progress.wait_until(lambda: self._progress.have_ended(small), "the small jobs that pass the big one")
        self._progress.say("four small jobs passed the big one; now the training jobs may end")
        self._progress.let_people_look()
        self._fleet.open_gate("trainings")
        self._progress.wait_until(lambda: self._progress.have_ended(big), "the big job, which needs the whole big box")

    def kill_a_worker(self) -> None:
        """Kills the Mac's worker while it runs three tasks, and starts it again when one of them has ended."""
        for name in LONG_NAMES:
            gate = "without-worker" if name == LONG_NAMES[0] else "with-worker"
            needs: Resources = {"cpu": 2, "labels": ["zone = office"], "backend": "metal"}
            job = self._client.submit_command(self._fleet.make_gated_command(gate, name), name=name, resources=needs)
            what = "ends while its worker is dead" if gate == "without-worker" else "outlives its worker"
            self._expect(name, job.id, f"{what}, in one attempt", workers=("mac",), check=check_one_attempt)
        long = self._ids(*LONG_NAMES)
        self._progress.wait_until_running(long, "the three tasks on the Mac to run")
        self._fleet.kill("mac")
        self._progress.say("killed the Mac's worker with -9; its tasks go on without it")
        self._progress.wait_until(lambda: self._mac_status() != "ready", "the hub to see that the Mac's worker is gone")
        self._progress.let_people_look()
        self._fleet.open_gate("without-worker")
        self._progress.wait_until(lambda: self._fleet.has_passed(LONG_NAMES[0]), "a task to end without its worker")
        self._fleet.start_worker("mac")
        self._progress.say("a task ended without its worker; started the Mac's worker again")
        self._progress.wait_until(lambda: self._mac_status() == "ready", "the Mac's worker to be back")
        self._progress.wait_until(lambda: self._progress.have_ended(long[:1]), "the Mac's worker to report that end")
        self._progress.say("the Mac's worker is back, reported that end and took its other tasks over")
        self._progress.let_people_look()
        self._fleet.open_gate("with-worker")

    def wait_for_ends(self) -> None:
        ids = [one.job_id for one in self._expected.values()]
        self._progress.wait_until(lambda: self._progress.have_ended(ids), "all jobs to end")

    def compare(self) -> list[Row]:
        documents = {name: self._progress.job(one.job_id) for name, one in self._expected.items()}
        rows = [one.compare(documents[name]) for name, one in self._expected.items()]
        return [*rows, compare_order(documents["big"], [documents[name] for name in SMALL_NAMES])]

    def reason_of_nowhere(self) -> str:
        """Why the job that fits nowhere was not placed, in the hub's words."""
        reason: str = self._progress.job(self._expected["nowhere"].job_id)["reason"]
        return reason

    # Internals

    @property
    def _client(self) -> ostler.Fleet:
        return self._progress.hub

    def _ids(self, *names: str) -> list[str]:
        return [self._expected[name].job_id for name in names]

    def _expect(self, name: str, job_id: str, what: str, **more: Any) -> None:
        self._expected[name] = Expectation(job_id, what, **more)

    def _submit_sleep(self, name: str, what: str, worker: str, needs: Resources) -> None:
        job = self._client.submit_command(["sleep", "1"], name=name, resources=needs)
        self._expect(name, job.id, what, workers=(worker,))

    def _command(self, name: str, what: str, script: str, *options: str, **expected: Any) -> None:
        """One job through the command line."""
        job_id = self._progress.run_command("submit", "--name", name, *options, "--", "sh", "-c", script).strip()
        self._expect(name, job_id, what, **expected)

    def _submit_array(self) -> None:
        script = "sleep 0.3; exit $((OSTLER_INDEX > 15))"
        self._command("array", "an array: 16 tasks succeed", script, "--array", "16", "--cpus", "1", check=check_counts)

    def _mac_status(self) -> str:
        status: str = self._client.hub.worker("mac")["status"]
        return status


def count_collatz_steps(start: int) -> int:
    steps = 0
    while start != 1:
        start = start // 2 if start % 2 == 0 else 3 * start + 1
        steps += 1
    return steps


def check_reason(document: Document) -> str:
    return "" if "100 cores" in document["reason"] else f"the reason does not name the cores: {document['reason']}"


def check_counts(document: Document) -> str:
    return "" if document["counts"] == {"succeeded": 16} else f"the tasks came to {document['counts']}"


def check_one_attempt(document: Document) -> str:
    return "" if len(document["attempts"]) == 1 else f"it took {len(document['attempts'])} attempts"


def check_value(job: Job, expected: int) -> Callable[[Document], str]:
    def look(_: Document) -> str:
        value = job.result(timeout=60)
        return "" if value == expected else f"it returned {value}"

    return look


def compare_order(big: Document, small: list[Document]) -> Row:
    """The small jobs came after the big one and ended before it began."""
    came_after = all(one["submitted_at"] > big["submitted_at"] for one in small)
    ended_before = all(one["finished_at"] < big["started_at"] for one in small)
    found = "they did" if came_after and ended_before else "they did not"
    problem = "" if came_after and ended_before else f"the big one began at {big['started_at']}"
    return Row("pair-0 … 3", "later than the big job, and pass it", found, problem)
