"""A training fleet on this machine, from the manifest to the artifacts: `python examples/training/run.py`.

A hub, two workers that hold a socket open and one, `pi`, that only asks over plain HTTP; sixteen models of
`manifest.toml`, one of which cannot be trained. It ends with what should hold of such a fleet (each model trained once,
each artifact stored once, the hosts' rules kept, a second apply changes nothing) and fails if something does not.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import ostler
from ostler import pull

FOLDER = Path(__file__).resolve().parent
MANIFEST = FOLDER / "manifest.toml"
OSTLER = (sys.executable, "-m", "ostler")
OFFER = "cpu_count = 2\nmemory_gb = 4\n"
"""Said, not detected: the example is to run alike on a small machine and on a busy one."""
CANNOT_BE_TRAINED = "gbt-monotone"
ITS_ERROR = "monotonic constraints are not supported for multiclass classification"
TRAINED_AGAIN = "mlp-on-the-pi"
LIMIT_S = 150.0
LOG_LINES = 15
Document = dict[str, Any]


class Fleet:
    """A hub and its workers as child processes, with a state folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        own = {name: value for name, value in os.environ.items() if not name.startswith("OSTLER_")}
        self.environment = own | {"OSTLER_STATE_DIR": str(folder / "state"), "NO_COLOR": "1"}
        # The manifest says `python -m trainer`: which Python, and where its trainer is, is a matter of the machine.
        path = os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)])
        self.on_workers = self.environment | {"PATH": path, "PYTHONPATH": str(FOLDER)}

    def start_hub(self) -> str:
        self._spawn("hub", [*OSTLER, "hub", "--port", "0"], self.environment)
        said = self.folder / "state" / "hub.url"
        wait_until(lambda: said.exists() and bool(said.read_text()), "the hub to listen")
        self.environment["OSTLER_HUB"] = self.on_workers["OSTLER_HUB"] = said.read_text().strip()
        return self.environment["OSTLER_HUB"]

    def start_worker(self, name: str) -> None:
        offer = self.folder / f"{name}.toml"
        offer.write_text(OFFER)
        command = [*OSTLER, "worker", "--name", name, "--slots", "1", "--offer", str(offer), "--drain-seconds", "5"]
        self._spawn(name, command, self.on_workers)

    def start_pull_worker(self, name: str) -> None:
        """One file and any Python: nothing of Ostler is installed on such a machine."""
        token = self.folder / f"{name}.token"
        token.write_text(self.ostler("token", "create", "--role", "worker", "--user", name))
        command = [sys.executable, "-I", "-S", pull.__file__, "--hub", self.environment["OSTLER_HUB"]]
        command += ["--token", f"@{token}", "--hostname", name, "--work", str(self.folder / name), "--poll", "1"]
        self._spawn(name, command, self.on_workers)

    def ostler(self, *arguments: str) -> str:
        """What this command prints."""
        done = subprocess.run([*OSTLER, *arguments], capture_output=True, text=True, env=self.environment)
        if done.returncode != 0:
            raise SystemExit(f"run: ostler {' '.join(arguments)} exited with {done.returncode}: {done.stderr}")
        return done.stdout

    def document(self, *arguments: str) -> Document:
        found: Document = json.loads(self.ostler(*arguments, "--json"))
        return found

    def stop(self) -> None:
        for name, process in reversed(self.processes.items()):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            if process.poll() is None:
                print(f"run: {name} did not stop by itself", file=sys.stderr)
                process.kill()

    def tell_logs(self) -> None:
        """How each log ends: the folder goes away with this program."""
        for name in self.processes:
            lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
            print(f"run: the end of {name}'s log", *lines[-LOG_LINES:], sep="\n    ", file=sys.stderr)

    def _spawn(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


def wait_until(true: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"run: waited {limit_s:.0f} s for {what}")
        time.sleep(0.1)


def watch(console: Console, hub: Any, ids: list[str]) -> dict[str, Document]:
    """Tell of every job that begins or ends, until all have ended; their documents by name."""
    began, seen = time.monotonic(), dict[str, str]()
    while True:
        jobs: list[Document] = [hub.job(job_id) for job_id in ids]
        for job in jobs:
            if seen.get(job["id"], "pending") != job["state"] and job["state"] != "assigned":
                seen[job["id"]] = job["state"]
                spent = time.monotonic() - began
                console.print(f"{spent:5.1f} s  {job['name']:32} {job['state']:10} {job['worker'] or ''}")
        if all(job["finished_at"] for job in jobs):
            return {job["name"]: job for job in jobs}
        if time.monotonic() - began > LIMIT_S:
            waiting = ", ".join(job["name"] for job in jobs if not job["finished_at"])
            raise SystemExit(f"run: not done after {LIMIT_S:.0f} s: {waiting}")
        time.sleep(0.3)


def results(jobs: dict[str, Document], artifacts: list[Document]) -> Table:
    """What was trained where, and what it is worth."""
    table = Table(title="what was trained", title_justify="left", box=None)
    for column in ("job", "state", "worker", "accuracy", "interval", "artifact"):
        table.add_column(column, no_wrap=True)
    by_job = {job["id"]: artifact for artifact in artifacts for job in artifact["jobs"]}
    for name, job in sorted(jobs.items()):
        artifact = by_job.get(job["id"])
        metrics = artifact["metrics"] if artifact else {}
        found = [f"{metrics[key]:.3f}" for key in ("accuracy", "accuracy_low", "accuracy_high") if key in metrics]
        worth = [found[0], "–".join(found[1:])] if found else ["", ""]
        table.add_row(name, job["state"], job["worker"], *worth, artifact["id"][:8] if artifact else "")
    return table


def findings(
    first: Document, jobs: dict[str, Document], artifacts: list[Document], log: str
) -> Iterator[tuple[str, object]]:
    """What should hold, and what is there against it: nothing, if it does."""
    yield f"the first apply inserts all {len(jobs)} jobs", first["inserted"] != len(jobs) and first
    tried = {name: len(job["attempts"]) for name, job in jobs.items()}
    yield "each job was tried once", {name: count for name, count in tried.items() if count != 1}
    trained = {name: job for name, job in jobs.items() if name != CANNOT_BE_TRAINED}
    states = {name: job["state"] for name, job in trained.items()}
    yield "each model was trained", {name: state for name, state in states.items() if state != "succeeded"}
    failed = jobs[CANNOT_BE_TRAINED]
    yield f"{CANNOT_BE_TRAINED} failed", failed["state"] != "failed" and failed["state"]
    yield "its reason is scikit-learn's own", ITS_ERROR not in failed["reason"] and failed["reason"]
    yield "its log has it too", ITS_ERROR not in log and log[-500:]
    placed = {(job["spec"]["training"]["model"], job["worker"]) for job in jobs.values()}
    yield "no trees on pi", ("gbt", "pi") in placed
    yield f"{TRAINED_AGAIN} ran there", jobs[TRAINED_AGAIN]["worker"] != "pi" and jobs[TRAINED_AGAIN]["worker"]
    large = [name for name, job in jobs.items() if job["spec"]["min_memory_gb"] > 1.5 and job["worker"] == "loft"]
    yield "nothing on loft that needs more memory than it may give", large
    made = sorted((job["id"], artifact["id"]) for artifact in artifacts for job in artifact["jobs"])
    wanted = sorted((job["id"], job["artifact_id"]) for job in trained.values())
    yield f"there are {len(trained)} artifacts, one of each model", made != wanted and made


def findings_in_the_store(
    fleet: Fleet, jobs: dict[str, Document], artifacts: list[Document]
) -> Iterator[tuple[str, object]]:
    stored = sorted(path.parent.name for path in (fleet.folder / "state" / "artifacts").rglob("bundle.*"))
    yield "each is stored once", stored != sorted(artifact["id"] for artifact in artifacts) and stored
    verified = fleet.document("artifacts", "verify", "--all")["artifacts"]
    yield "and its bytes are what its name says", [one["id"] for one in verified if not one["ok"]]
    again = trained_again(fleet, jobs[TRAINED_AGAIN])
    same = again == jobs[TRAINED_AGAIN]["artifact_id"]
    yield f"{TRAINED_AGAIN}, trained again here, gives the same bytes", not same and again


def findings_after_a_second_apply(
    fleet: Fleet, jobs: dict[str, Document], seen_now: Callable[[], dict[str, Document]]
) -> Iterator[tuple[str, object]]:
    answer = fleet.document("apply", str(MANIFEST))
    counts = {key: answer[key] for key in ("inserted", "unchanged", "updated", "absent")}
    nothing_new = {"inserted": 0, "unchanged": len(jobs), "updated": 0, "absent": 0}
    yield f"a second apply: all {len(jobs)} unchanged", counts != nothing_new and counts
    now = seen_now()
    yield "and nothing is trained again", [name for name in jobs if now[name] != jobs[name]]


def trained_again(fleet: Fleet, job: Document) -> str:
    """The artifact's id, had this job run here: the same command in another folder, packed as workers pack."""
    out = fleet.folder / "again"
    command = [part.replace("$OSTLER_OUT", str(out)) for part in job["spec"]["command"]]
    subprocess.run(command, env=fleet.on_workers, stdout=subprocess.DEVNULL, check=True)
    return pull.pack(out, fleet.folder / "again.tar")


def verdict(console: Console, found: list[tuple[str, object]]) -> int:
    for what, against in found:
        console.print(f"✘ {what}: {against}" if against else f"✔ {what}", soft_wrap=True, markup=False)
    wrong = sum(bool(against) for _, against in found)
    console.print(f"{wrong} of {len(found)} do not hold" if wrong else f"all {len(found)} hold")
    return 1 if wrong else 0


def play(console: Console, fleet: Fleet) -> int:
    url = fleet.start_hub()
    for name in ("desk", "loft"):
        fleet.start_worker(name)
    fleet.start_pull_worker("pi")
    token = (fleet.folder / "state" / "admin.token").read_text().strip()
    with ostler.connect(hub=url, token=token) as client:
        wait_until(lambda: {worker["id"] for worker in client.workers()} == {"desk", "loft", "pi"}, "three workers")
        console.print(f"hub on {url} with desk, loft and pi; applying {MANIFEST.name}")
        first = fleet.document("apply", str(MANIFEST), "--check")
        ids = [job["job_id"] for job in first["jobs"]]
        jobs = watch(console, client.hub, ids)
        artifacts = fleet.document("artifacts", "list")["artifacts"]
        console.print(results(jobs, artifacts))
        for sweep in sorted({job["spec"]["training"].get("sweep", "") for job in jobs.values()} - {""}):
            console.out(fleet.ostler("sweeps", "show", sweep), highlight=False)
        found = [
            *findings(first, jobs, artifacts, fleet.ostler("logs", CANNOT_BE_TRAINED)),
            *findings_in_the_store(fleet, jobs, artifacts),
            *findings_after_a_second_apply(fleet, jobs, lambda: watch(Console(quiet=True), client.hub, ids)),
        ]
    return verdict(console, found)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # by way of `finally`: nothing stays behind
    with tempfile.TemporaryDirectory(prefix="ostler-training-", ignore_cleanup_errors=True) as folder:
        fleet = Fleet(Path(folder))
        code = 1
        try:
            code = play(Console(), fleet)
        finally:
            fleet.stop()
            if code != 0:
                fleet.tell_logs()
        return code


if __name__ == "__main__":
    sys.exit(main())
