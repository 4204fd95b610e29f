"""A short life of a small fleet with everything in it, which ends the same wherever one of its processes is killed."""

import hashlib
import http.client
import io
import json
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from tests.process_fleet import ENDS, ProcessFleet, usable

from ostler.core.check import check
from ostler.core.persist import restore
from ostler.hub.ids import new_attempt_id
from ostler.ledger.sqlite import SqliteLedger

PROGRAM = (sys.executable, str(Path(__file__).with_name("points.py")))
PATIENCE_S = 60.0
WORKERS = ("a", "b")
ROLES = ("hub", "worker")
"""Whose process may be told to die: the hub's, or that of the first worker."""
RUNS = """
tell() { echo "$1 $OSTLER_TASK_ID $OSTLER_ATTEMPT" >> "$DIARY"; }
tell begin
trap 'tell end; exit 143' TERM
"""
QUICK = RUNS + "tell end"
WAITS = RUNS + "while :; do sleep 0.05; done"
MAKES = RUNS + 'echo weights > "$OSTLER_OUT/model"; tell end'
GOES_ON = (
    RUNS
    + """
if test -e "$OSTLER_CHECKPOINT/step"; then tell end; exit 0; fi
echo 7 > "$OSTLER_CHECKPOINT/step"; tell end; exit 3
"""
)
MANIFEST = """
[[jobs]]
name = "claimed"
model = "gbt"
min_ram_gib = 100.0
command = ["true"]
"""
CAPABILITY = {"cuda_available": False, "ram_available_gib": 200.0, "ram_total_gib": 200.0, "cpu_cores": 4}
Document = dict[str, Any]


class Broken(AssertionError):
    """Something that must hold after every crash does not."""


class CrashingFleet(ProcessFleet):
    """A fleet of which one process dies at a point, and is started again at once as a service manager would."""

    def __init__(self, folder: Path, role: str = "", at: int = 0) -> None:
        super().__init__(folder, PROGRAM)
        self.diary = folder / "diary"
        self.points = folder / "points"
        self.role = role
        self.at = at
        self.crashes = 0
        self._closing = False
        self._watchers: list[threading.Thread] = []

    def begin(self) -> None:
        self.start_hub()
        for name in WORKERS:
            self.start_worker(name, offer={"labels": {"stall": name}})
        for name in WORKERS:
            self.until(lambda name=name: self.is_ready(name), f"{name} has registered: {self.log_of(name)}")

    def start_hub(self) -> None:
        """Not waited for: it may die before it listens, and the one after it is on the same port."""
        self._start("hub", ("hub", "--port", str(self.port)))
        self.until((self.state / "join.token").exists, f"the hub starts: {self.log_of('hub')}")
        self.token = (self.state / "admin.token").read_text().strip()

    def is_ready(self, name: str) -> bool:
        status, found = self.ask("GET", f"/v1/workers/{name}")
        return status == 200 and usable(found)

    def _start(self, name: str, arguments: tuple[str, ...]) -> None:
        first = name not in self._arguments
        counted = self.role == "hub" if name == "hub" else self.role == "worker" and name == WORKERS[0]
        if first and counted:
            self.environment |= {"CRASH_ROLE": self.role, "CRASH_AT": str(self.at), "CRASH_LOG": str(self.points)}
        super()._start(name, arguments)
        for key in ("CRASH_ROLE", "CRASH_AT", "CRASH_LOG"):
            self.environment.pop(key, None)
        watcher = threading.Thread(target=self._watch, args=(name, self.processes[name]), daemon=True)
        self._watchers.append(watcher)
        watcher.start()

    def _watch(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        if code == -9 and not self._closing:
            self.crashes += 1
            self.start_again(name)

    def end(self) -> None:
        """Everything stops as it should."""
        self._closing = True
        with suppress(psutil.NoSuchProcess):  # gone by itself since it was looked for
            self.close()

    def diary_text(self) -> str:
        return self.diary.read_text() if self.diary.exists() else ""

    # Asking, again and again until there is an answer

    def ask(self, method: str, path: str, body: object = None, key: str = "", token: str = "") -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token or self.token}", **({"Idempotency-Key": key} if key else {})}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=PATIENCE_S)
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                found = answer.read()
                connection.close()
                if answer.status < 500:
                    return answer.status, json.loads(found) if found[:1] in (b"{", b"[") else found
            except (OSError, http.client.HTTPException):
                pass
            if time.monotonic() > deadline:
                raise Broken(f"{method} {path} was not answered for {PATIENCE_S:.0f} s: {self.log_of('hub')}")
            time.sleep(0.03)

    def told(self, method: str, path: str, body: object = None, key: str = "") -> Document:
        status, found = self.ask(method, path, body, key)
        if not 200 <= status < 300:
            raise Broken(f"{method} {path} was answered with {status}: {found}")
        return dict(found)

    def submitted(self, name: str, script: str, **more: Any) -> str:
        """On the worker that may die, unless it is said otherwise."""
        spec = {"command": ["sh", "-c", script], "env": {"DIARY": str(self.diary)}, "min_cpu_cores": 1, "name": name}
        spec["labels"] = [f"stall == {WORKERS[0]}"]
        return str(self.told("POST", "/v1/jobs", {**spec, **more}, key=name)["id"])

    def job(self, job_id: str, wait_s: float = 0.0) -> Document:
        return self.told("GET", f"/v1/jobs/{job_id}?wait={wait_s:g}")

    def ended(self, job_id: str, state: str = "succeeded") -> Document:
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.job(job_id, 5.0))["state"] not in ENDS:
            if time.monotonic() > deadline:
                raise Broken(f"{job_id} does not end: {found}")
        if found["state"] != state:
            raise Broken(f"{job_id} ended otherwise: {found}")
        return found

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := holds()):
            if time.monotonic() > deadline:
                raise Broken(f"never: {what}")
            time.sleep(0.03)
        return found


def play(fleet: CrashingFleet) -> dict[str, str]:
    """What the fleet is asked for, and how each job must end, by its id."""
    token = fleet.told("POST", "/v1/tokens", {"role": "user", "user": "ann"})
    quick = fleet.submitted("quick", QUICK)
    several = fleet.submitted("several", QUICK, array=3)
    gang = fleet.submitted("gang", QUICK, node_count=2, labels=[])
    stopped = fleet.submitted("stopped", WAITS)
    fleet.until(lambda: "begin " + stopped in fleet.diary_text(), "the job that is to be cancelled has begun")
    fleet.told("POST", f"/v1/jobs/{stopped}/cancel")
    fleet.ended(quick)
    again = fleet.submitted("again", WAITS)
    fleet.until(lambda: "begin " + again in fleet.diary_text(), "the job that is to be requeued has begun")
    fleet.told("POST", f"/v1/jobs/{again}/requeue")
    makes = fleet.submitted("makes", MAKES)
    goes_on = fleet.submitted("goes-on", GOES_ON, max_retries=1)
    claimed = claim_and_complete(fleet)
    if len(fleet.ended(goes_on)["attempts"]) < 2:
        raise Broken("a task that left a checkpoint and failed was not tried again")
    if not fleet.ended(makes)["artifact_id"]:
        raise Broken("a task that left outputs has no artifact")
    fleet.until(lambda: fleet.diary_text().count("begin " + again) > 1, "what was requeued has begun again")
    fleet.told("POST", f"/v1/jobs/{again}/cancel")
    fleet.ask("DELETE", f"/v1/tokens/{token['id']}")  # asked again after its answer was lost, it is there no more
    if (status := fleet.ask("GET", "/v1/jobs", token=token["token"])[0]) != 401:
        raise Broken(f"a token that was revoked is answered with {status}")
    ended = dict.fromkeys((quick, several, gang, makes, goes_on, claimed), "succeeded")
    return ended | {stopped: "cancelled", again: "cancelled"}


def claim_and_complete(fleet: CrashingFleet) -> str:
    """As a machine without a connection does it. A claim whose answer was lost lapses with its lease."""
    token = (fleet.state / "join.token").read_text().strip()
    fleet.told("PUT", "/v1/manifest", MANIFEST.encode())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("model"))
    sha256 = hashlib.sha256(packed.getvalue()).hexdigest()

    def complete() -> str:
        status, claim = fleet.ask("POST", "/v1/job/claim", {"hostname": "pi", "capability": CAPABILITY}, token=token)
        if status != 200:
            return ""
        fleet.ask("PUT", f"/v1/model/{sha256}", packed.getvalue(), token=token)
        said = {"hostname": "pi", "attempt": claim["attempt"], "artifact_id": sha256}
        status, _ = fleet.ask("POST", f"/v1/job/{claim['job_id']}/complete", said, token=token)
        return str(claim["job_id"]) if status < 300 else ""

    return str(fleet.until(complete, "a machine without a connection has claimed its job and completed it"))


def check_all(fleet: CrashingFleet, ends: dict[str, str]) -> None:
    """While it runs, and then what it has left on the disk."""
    for job_id, state in ends.items():
        fleet.ended(job_id, state)
    listed = fleet.told("GET", "/v1/jobs?limit=1000")["jobs"]
    if {job["id"] for job in listed} != set(ends) or len(listed) != len(ends):
        raise Broken(f"acknowledged were {sorted(ends)}, and there are {sorted(job['id'] for job in listed)}")
    for name in WORKERS:
        fleet.until(
            lambda name=name: not fleet.told("GET", f"/v1/workers/{name}")["tasks"], f"nothing is held on {name}"
        )
    for job_id in ends:
        events = fleet.told("GET", f"/v1/jobs/{job_id}/events")["events"]
        told = Counter(event.get("task") or event["subject"] for event in events if event.get("state") in ENDS)
        if any(times > 1 for times in told.values()):
            raise Broken(f"more than one end of {job_id} was told: {events}")
    check_diary(fleet)
    if "Traceback" in "".join(fleet.log_of(name) for name in ("hub", *WORKERS)):
        raise Broken(f"somebody met a fault of its own: {[fleet.log_of(name) for name in ('hub', *WORKERS)]}")
    fleet.end()
    check_ledger(fleet.state / "ostler.db")


def check_diary(fleet: CrashingFleet) -> None:
    """No attempt began twice, and none of a task while another of it ran."""
    runs: dict[str, str] = {}
    begun: Counter[str] = Counter()
    for line in fleet.diary_text().splitlines():
        what, task, attempt = line.split()
        if what == "begin":
            begun[f"{task} {attempt}"] += 1
            if task in runs:
                raise Broken(f"{attempt} of {task} began while {runs[task]} ran")
            runs[task] = attempt
        elif runs.get(task) == attempt:
            del runs[task]
    if runs:
        raise Broken(f"tasks that never ended: {runs}")
    if twice := [one for one, times in begun.items() if times > 1]:
        raise Broken(f"attempts that began twice: {twice}")


def check_ledger(file: Path) -> None:
    """It opens, is sound, and holds every invariant of the fleet that is made from it."""
    ledger = SqliteLedger(file)
    try:
        now = time.monotonic()
        fleet = restore(ledger.load(), new_attempt_id, now, time.time() - now, {}, ledger.live_jobs())
        check(fleet, now, after_pass=False)
        if fleet.jobs:
            raise Broken(f"jobs that have not ended: {list(fleet.jobs)}")
    finally:
        ledger.close()
