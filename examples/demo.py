"""A small fleet on this machine, from the first job to the last: `make demo`.

A hub and four workers whose hardware is declared (an 8-GPU and a 2-GPU nvidia box, a Mac, a CPU server), about forty
real processes sent through the command line and the Python client, one job that fits nowhere, one big job behind
which small ones pass, and one worker killed with -9. It ends with a table of what was expected and what happened, and
fails if they differ.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

import ostler

OFFERS = Path(__file__).parent / "offers"
WORKERS = ("big-gpu", "small-gpu", "mac", "cpu")
OSTLER = [sys.executable, "-m", "ostler.cli"]
SYMBOLS = {"succeeded": "✔", "failed": "✘", "running": "▶", "unschedulable": "∅", "cancelled": "■", "orphaned": "?"}
LIMIT_S = 100.0


@dataclass
class Expectation:
    """What one job should come to, and where."""

    job_id: str
    what: str
    state: str = "succeeded"
    workers: tuple[str, ...] = ()
    exit_code: int | None = None
    check: Callable[[dict[str, Any]], str] | None = None
    """More to look at; returns what is wrong, or nothing."""


@dataclass
class Yard:
    """The demo's hub and workers, as child processes with a state folder of their own."""

    state: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_hub(self) -> str:
        self.processes["hub"] = self._spawn("hub", "hub", "--port", "0", "--state-dir", str(self.state))
        said = self.state / "hub.url"
        wait_until(said.exists, "the hub to listen")
        return said.read_text().strip()

    def start_worker(self, name: str, url: str) -> None:
        offer = OFFERS / f"{name}.toml"
        arguments = ["worker", "--hub", url, "--token", f"@{self.state / 'join.token'}", "--name", name]
        arguments += ["--offer", str(offer), "--state-dir", str(self.state)]
        self.processes[name] = self._spawn(name, *arguments)

    def kill(self, name: str) -> None:
        """No warning, no cleaning up: what a crash looks like."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def stop(self) -> None:
        for name in (*WORKERS, "hub"):
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            if process.poll() is None:
                process.kill()

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.state / f"{name}.out", "ab") as output:
            return subprocess.Popen([*OSTLER, *arguments], stdout=output, stderr=output, stdin=subprocess.DEVNULL)


def wait_until(true: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"demo: waited {limit_s:.0f} s for {what}")
        time.sleep(0.05)


def submit(url: str, token: str, *arguments: str) -> str:
    """One job through the command line, as a user would send it; its id comes back."""
    environment = {**os.environ, "OSTLER_HUB": url, "OSTLER_TOKEN": token}
    done = subprocess.run([*OSTLER, "submit", *arguments], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"demo: submit {' '.join(arguments)} failed: {done.stderr}")
    return done.stdout.strip()


def collatz_steps(start: int) -> int:
    steps = 0
    while start != 1:
        start = start // 2 if start % 2 == 0 else 3 * start + 1
        steps += 1
    return steps


def send_first_wave(fleet: ostler.Fleet, url: str, token: str) -> list[Expectation]:
    """GPU work that keeps both nvidia boxes busy for a few seconds, and work of every other kind beside it."""
    jobs: list[Expectation] = []
    for number in range(2):
        job = fleet.submit_command(
            ["sleep", "9"],
            name=f"train-{number}",
            tier="training",
            resources={"gpu": 4, "vram": "160g", "backend": "nvidia"},
        )
        jobs.append(Expectation(job.id, "4 GPUs with 160 GiB together: only the big box", workers=("big-gpu",)))
    for number in range(2):
        job = fleet.submit_command(["sleep", "3"], name=f"small-{number}", resources={"gpu": 1, "gpu_type": "rtx4090"})
        jobs.append(Expectation(job.id, "1 RTX4090", workers=("small-gpu",)))
    ident = submit(url, token, "--name", "metal", "--backend", "metal", "--gpus", "1", "--", "sleep", "2")
    jobs.append(Expectation(ident, "a Metal GPU", workers=("mac",)))
    for number in range(2):
        job = fleet.submit_command(
            ["sleep", "2"], name=f"share-{number}", resources={"vram": "20g", "backend": "metal"}
        )
        jobs.append(Expectation(job.id, "20 GiB of a Metal GPU, shared with others", workers=("mac",)))
    ident = submit(url, token, "--name", "big", "--gpus", "8", "--tier", "training", "--", "sleep", "2")
    jobs.append(Expectation(ident, "8 GPUs: waits for the whole big box", workers=("big-gpu",)))
    ident = submit(url, token, "--name", "nowhere", "--cpus", "100", "--schedule-timeout", "5s", "--", "true")
    jobs.append(Expectation(ident, "100 cores, 5 s to be placed: fits nowhere", "unschedulable", check=says_why))
    return jobs


def send_small_ones(fleet: ostler.Fleet, url: str, token: str) -> list[Expectation]:
    """What passes the big job, which was there first."""
    jobs: list[Expectation] = []
    for number in range(4):
        job = fleet.submit_command(
            ["sleep", "1"], name=f"pair-{number}", resources={"cpu": 2, "labels": ["zone = basement"], "backend": "cpu"}
        )
        jobs.append(Expectation(job.id, "2 of the CPU server's 4 cores: they run in pairs", workers=("cpu",)))
    array = submit(
        url,
        token,
        "--name",
        "array",
        "--array",
        "16",
        "--cpus",
        "1",
        "--",
        "sh",
        "-c",
        "sleep 0.3; exit $((OSTLER_INDEX > 15))",
    )
    jobs.append(Expectation(array, "an array of 16 tasks", check=all_sixteen))
    failing = submit(url, token, "--name", "fails", "--", "sh", "-c", "echo no such data set >&2; exit 3")
    jobs.append(Expectation(failing, "exits with 3", "failed", exit_code=3))
    for number in range(6):
        job = fleet.submit(collatz_steps, 27 + number, name=f"collatz-{27 + number}")
        expected = collatz_steps(27 + number)
        jobs.append(Expectation(job.id, f"a Python function that returns {expected}", check=returns(job, expected)))
    for number in range(3):
        job = fleet.submit_command(
            ["sleep", "12"],
            name=f"long-{number}",
            resources={"cpu": 2, "labels": ["zone = office"], "backend": "metal"},
        )
        jobs.append(
            Expectation(job.id, "on the Mac when its worker is killed: goes on", workers=("mac",), check=ran_once)
        )
    return jobs


def says_why(document: dict[str, Any]) -> str:
    return "" if "100 cores" in document["reason"] else f"its reason does not say why: {document['reason']}"


def all_sixteen(document: dict[str, Any]) -> str:
    return "" if document["counts"] == {"succeeded": 16} else f"counts are {document['counts']}"


def ran_once(document: dict[str, Any]) -> str:
    return "" if len(document["attempts"]) == 1 else f"it took {len(document['attempts'])} attempts"


def returns(job: Any, expected: int) -> Callable[[dict[str, Any]], str]:
    def look(_: dict[str, Any]) -> str:
        value = job.result(timeout=10)
        return "" if value == expected else f"returned {value}"

    return look


def overtaken(documents: dict[str, dict[str, Any]]) -> str:
    """The small ones came after the big job and ended before it began."""
    by_name = {document["name"]: document for document in documents.values()}
    big, small = by_name["big"], by_name["pair-0"]
    if small["submitted_at"] > big["submitted_at"] and small["finished_at"] < big["started_at"]:
        return ""
    return f"big began {big['started_at']}, the small one ended {small['finished_at']}"


def board(documents: dict[str, dict[str, Any]], workers: list[dict[str, Any]], since: float, note: str) -> Table:
    """The live table: machines above, what runs on each, and how far the jobs are."""
    table = Table(title=f"the yard after {time.monotonic() - since:4.1f} s — {note}", expand=True, title_justify="left")
    table.add_column("machine", no_wrap=True)
    table.add_column("status")
    table.add_column("GPUs held", justify="right")
    table.add_column("cores held", justify="right")
    table.add_column("running", ratio=1)
    names = {document["id"]: document["name"] for document in documents.values()}
    for worker in workers:
        running = [names.get(task["task_id"].partition(".")[0], "?") for task in worker["tasks"]]
        held = worker["gpu_count"] - worker["free"]["gpus"]
        cores = worker["cpu_count"] - worker["free"]["cores"]
        gpus = f"{held}/{worker['gpu_count']}"
        table.add_row(worker["id"], worker["status"], gpus, f"{cores:g}/{worker['cpu_count']:g}", ", ".join(running))
    counts: dict[str, int] = {}
    for document in documents.values():
        counts[document["state"]] = counts.get(document["state"], 0) + 1
    table.caption = "  ".join(f"{SYMBOLS.get(state, '·')} {count} {state}" for state, count in sorted(counts.items()))
    return table


def verdict(expected: list[Expectation], documents: dict[str, dict[str, Any]]) -> tuple[Table, int]:
    table = Table(title="what was expected, and what happened", expand=True, title_justify="left")
    for column in ("job", "expected", "state", "worker", ""):
        table.add_column(column, overflow="fold")
    wrong = 0
    for one in expected:
        document = documents[one.job_id]
        problem = judge(one, document)
        wrong += bool(problem)
        where = f" on {'/'.join(one.workers)}" if one.workers else ""
        outcome = f"✘ {problem}" if problem else "✔"
        table.add_row(
            document["name"], f"{one.what}: {one.state}{where}", document["state"], document["worker"] or "", outcome
        )
    problem = overtaken(documents)
    wrong += bool(problem)
    table.add_row("", "small jobs pass the big one that cannot start yet", "", "", f"✘ {problem}" if problem else "✔")
    return table, wrong


def judge(one: Expectation, document: dict[str, Any]) -> str:
    if document["state"] != one.state:
        return f"{document['state']}: {document['reason']}"
    if one.workers and document["worker"] not in one.workers:
        return f"ran on {document['worker']}"
    if one.exit_code is not None and document["exit_code"] != one.exit_code:
        return f"exit code {document['exit_code']}"
    return one.check(document) if one.check else ""


@contextlib.contextmanager
def yard() -> Iterator[Yard]:
    with tempfile.TemporaryDirectory(prefix="ostler-demo-") as folder:
        made = Yard(Path(folder))
        try:
            yield made
        finally:
            made.stop()


def play(console: Console) -> int:
    with yard() as place:
        url = place.start_hub()
        token = (place.state / "admin.token").read_text().strip()
        console.print(f"hub on {url}; starting four workers")
        for name in WORKERS:
            place.start_worker(name, url)
        with ostler.connect(hub=url, token=token) as fleet:
            wait_until(lambda: sum(w["status"] == "ready" for w in fleet.workers()) == 4, "four workers")
            return watch(console, place, fleet, url, token)


def watch(console: Console, place: Yard, fleet: ostler.Fleet, url: str, token: str) -> int:
    began = time.monotonic()
    expected = send_first_wave(fleet, url, token) + send_small_ones(fleet, url, token)
    killed_at = restarted_at = 0.0
    note = f"{len(expected)} jobs submitted"
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while True:
            documents = {one.job_id: fleet.hub.job(one.job_id) for one in expected}
            live.update(board(documents, fleet.workers(), began, note))
            long_runs = all(d["state"] != "pending" for d in documents.values() if d["name"].startswith("long-"))
            if not killed_at and long_runs:
                place.kill("mac")
                killed_at, note = time.monotonic(), "killed the Mac's worker with -9; its tasks go on without it"
            elif killed_at and not restarted_at and time.monotonic() - killed_at > 4:
                place.start_worker("mac", url)
                restarted_at, note = time.monotonic(), "the Mac's worker is started again and takes its tasks back"
            if restarted_at and all(d["finished_at"] for d in documents.values()):
                break
            if time.monotonic() - began > LIMIT_S:
                console.print(f"demo: not done after {LIMIT_S:.0f} s")
                break
            time.sleep(0.3)
    documents = {one.job_id: fleet.hub.job(one.job_id) for one in expected}
    table, wrong = verdict(expected, documents)
    console.print(table)
    nowhere = next(d for d in documents.values() if d["name"] == "nowhere")
    console.print(f"why 'nowhere' could not be placed: {nowhere['reason']}", soft_wrap=True)
    tasks = sum(sum(d.get("counts", {"": 1}).values()) for d in documents.values())
    spent = time.monotonic() - began
    console.print(
        f"{len(documents)} jobs, {tasks} tasks, {spent:.1f} s: " + (f"{wrong} differ" if wrong else "all as expected")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(play(Console()))
