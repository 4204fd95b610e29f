"""The pull API's client and worker, for machines that cannot hold a socket open: plain HTTP, plain Python.

It is all in this one file and needs Python 3.9 and nothing else, so it can be copied to a machine and run there:
`python3 pull.py --hub https://hub.example:7600 --token @token.txt`. It asks the hub for a job that this machine is fit
for, runs it, says every 30 s that it is alive, packs what the job has written to $OSTLER_OUT, uploads that, and asks
again. After SIGTERM it asks no more, and the job may finish; a second one hands the job back at once.
Exit codes: 0 told to leave, or --jobs are done; 1 the job of --once did not complete, or --check found nothing that
could run a job; 2 wrong usage; 3 (--once) the hub cannot be reached; 4 not allowed; 5 (--once) nothing to do.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import http.client
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlencode, urlsplit

MIB, GIB = 1 << 20, 1 << 30
REQUEST_S, LONGEST_PAUSE_S, GRACE_S, LOOK_S, NEVER, KEEP_S = 30.0, 30.0, 10.0, 0.1, float("inf"), 7 * 86400.0
KINDS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
SPARE_S, CANCELLED, TAKEN = 20.0, "cancelled", "the hub has taken it back"
_log = logging.getLogger("ostler.pull")
T = TypeVar("T")
Check = Callable[[], object]
Answer = tuple[int, http.client.HTTPMessage, dict[str, Any]]


def _clock() -> float:
    """Seconds that also pass while the machine sleeps: the hub's lease runs out meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


# The client


class Unreachable(Exception):
    """The hub does not answer, or cannot right now; later it may."""


class Refused(Exception):
    """The hub will not have this, now or later."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"the hub answers {status}: {detail}")
        self.status, self.detail = status, detail


class Client:
    """The pull API. Every call may raise Refused or Unreachable."""

    def __init__(self, hub: str, token: str, timeout_s: float = REQUEST_S, ca: str = "") -> None:
        self._hubs = [urlsplit(one.strip()) for one in hub.split(",")]  # the one that answered last is the first
        if not all(one.scheme in KINDS and one.hostname and one.port != 0 for one in self._hubs):
            raise ValueError(f"{hub!r} is not the address of a hub: give one like http://hub.example:7600")
        if not token or not token.isascii() or not token.isprintable():
            raise ValueError("there is no token, or it has characters that no token has: give it with --token")
        self.ca, self._tls = ca, ssl.create_default_context(cafile=ca or None) if "https:" in hub else None
        self.hub, self.token, self.timeout_s, self.reason, self.claimed_at = hub.rstrip("/"), token, timeout_s, "", 0.0

    def claim(self, hostname: str, capability: Mapping[str, Any]) -> dict[str, Any] | None:
        """A job for this machine; None if there is none, and then `reason` says why."""
        self.claimed_at = _clock()
        status, headers, job = self._post("claim", hostname=hostname, capability=capability)
        self.reason = headers.get("Ostler-Reason") or ""
        return job if status != 204 else None

    def heartbeat(self, job_id: str, hostname: str, attempt: str = "", progress: object = None) -> bool:
        """True: the job is to be stopped."""
        _, _, said = self._post(f"{job_id}/heartbeat", hostname=hostname, attempt=attempt, progress=progress)
        return said.get("cancel") is True

    def complete(self, job_id: str, hostname: str, attempt: str = "", **result: object) -> None:
        """`result`: artifact_id, metrics."""
        self._post(f"{job_id}/complete", hostname=hostname, attempt=attempt, **result)

    def fail(self, job_id: str, hostname: str, attempt: str = "", *, error: str, **more: object) -> None:
        """`more`: exit_code; returned=True hands it back for another machine, fault="worker" by a fault of this one."""
        self._post(f"{job_id}/fail", hostname=hostname, attempt=attempt, error=error, **more)

    def append_log(self, task_id: str, attempt: str, offset: int, data: bytes, final: bool = False) -> int:
        """How much of the log the hub has now."""
        query = urlencode({"attempt": attempt, "offset": offset, "final": int(final)})
        status, _, said = self._ask("POST", f"/v1/tasks/{quote(task_id)}/logs?{query}", data, 409)
        have = int(said.get("size", offset))
        if status == 409 and offset < have < offset + len(data):  # an earlier try was cut off there
            return self.append_log(task_id, attempt, have, data[have - offset :], final)
        return have

    def upload(self, path: str | Path, sha256: str, check: Check = lambda: None, tries: int = 8) -> None:
        """Bring a file to the hub; an upload that is cut goes on where it ended. `check` may raise to end it."""
        size, model = os.path.getsize(path), f"/v1/model/{sha256}"

        def go_on() -> None:
            _, headers, _ = self._ask("HEAD", model, b"", 404)
            if headers.get("Ostler-Complete") == "1":
                return
            offset = int(headers.get("Upload-Offset") or 0) % (size or 1)
            said = {"Content-Length": str(size - offset), "Content-Type": "application/x-tar"}
            if offset:
                said["Content-Range"] = f"bytes {offset}-{size - 1}/{size}"
            with open(path, "rb") as file:
                file.seek(offset)
                body = ((check(), piece)[1] for piece in iter(lambda: file.read(MIB), b""))
                # 409: it has another part by now. 422 of a rest: the part that it had was damaged, and is gone.
                status, _, document = self._ask("PUT", model, body, 409, 422 if offset else 409, **said)
            if status not in (200, 201):
                raise Unreachable(f"the upload of {sha256} goes on: {document.get('detail') or status}")

        persist(go_on, check, tries)

    def _post(self, path: str, **document: object) -> Answer:
        body = json.dumps({key: value for key, value in document.items() if value not in ("", None)}).encode()
        return self._ask("POST", f"/v1/job/{quote(path)}", body, **{"Content-Type": "application/json"})

    def _ask(self, method: str, path: str, body: bytes | Iterable[bytes], *fine: int, **headers: str) -> Answer:
        hub, *others = self._hubs
        headers.update({"Authorization": f"Bearer {self.token}", "User-Agent": "ostler-pull", "Connection": "close"})
        tls: Any = {"context": self._tls} if hub.scheme == "https" else {}
        connection = KINDS[hub.scheme](hub.hostname or "", hub.port, timeout=self.timeout_s, **tls)
        try:
            # What breaks while the body is sent may be an answer that did not wait for all of it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, hub.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            text = response.read(16 * MIB)
        except (OSError, http.client.HTTPException) as error:
            self._hubs = [*others, hub]  # another one may lead by now
            raise Unreachable(f"the hub {hub.geturl()} does not answer: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()
        try:
            document, status = dict(json.loads(text or b"{}")), response.status
        except (ValueError, TypeError, RecursionError):  # whoever says yes like that is no hub
            document, status = {"detail": text[:200].decode(errors="replace")}, max(response.status, 300)
        detail = str(document.get("detail") or response.reason)
        if status < 300 or status in fine:
            return status, response.headers, document
        if status >= 500 or status in (408, 429):
            self._hubs = [*others, hub]
            raise Unreachable(f"the hub {hub.geturl()} answers {status}: {detail}")
        raise Refused(status, detail)


def persist(call: Callable[[], T], check: Check = lambda: None, tries: int = 8) -> T:
    """Call until the hub answers; the last try raises. `check` is called in the pauses, and may raise as well."""
    failures = 0
    while True:
        try:
            return call()
        except Unreachable as error:
            if (failures := failures + 1) >= tries:
                raise
            _log.warning("%s", error)
        # Never the same pause: a fleet must not come back all at once.
        _pause(min(LONGEST_PAUSE_S, 2.0 ** min(failures - 1, 9)) * random.uniform(0.5, 1.0), check)


def _pause(seconds: float, check: Check) -> None:
    end = _clock() + seconds
    while (left := end - _clock()) > 0:
        check()
        time.sleep(min(left, LOOK_S))


# What this machine has


def detect() -> dict[str, Any]:
    """The capability that goes with every claim."""
    cores = float(len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)
    total, available = _memory()
    group = Path("/sys/fs/cgroup", tail(Path("/proc/self/cgroup")).partition("0::/")[2].strip())
    for folder in (group, *group.parents):
        quota, _, period = tail(folder / "cpu.max").partition(" ")
        if quota.isdecimal():
            cores = min(cores, int(quota) / int(period))
        if (limit := tail(folder / "memory.max").strip()).isdecimal():
            cache = re.search(r"^inactive_file (\d+)", tail(folder / "memory.stat"), re.MULTILINE)
            used = int(tail(folder / "memory.current") or 0) - (int(cache[1]) if cache else 0)
            total, available = min(total, int(limit)), min(available, max(0, int(limit) - used))
    ram = {"ram_available_gib": round(available / GIB, 3), "ram_total_gib": round(total / GIB, 3)}
    facts: dict[str, Any] = {**ram, "cpu_cores": round(cores, 3), "cuda_devices": _cuda_devices()}
    facts["cuda_available"] = bool(facts["cuda_devices"])
    with contextlib.suppress(metadata.PackageNotFoundError):
        facts["torch_version"] = metadata.version("torch")
    commit = _said("git", "rev-parse", "HEAD").strip()
    return {**facts, "git_commit": commit} if commit else facts


def _memory() -> tuple[int, int]:
    """Bytes in all, and those that nobody uses."""
    if sys.platform == "win32":
        import ctypes

        status = (ctypes.c_ulonglong * 8)(64)  # MEMORYSTATUSEX: its length and the load in one, then seven sizes
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return status[1], status[2]
    if sys.platform == "darwin":
        total, text = int(_said("sysctl", "-n", "hw.memsize") or 0), _said("vm_stat")
        size = int((re.search(r"page size of (\d+)", text) or ["", "4096"])[1])
        pages = sum(int(count) for count in re.findall(r"Pages (?:free|inactive|speculative): +(\d+)", text))
        return total, min(total, pages * size)
    kib = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB", tail(Path("/proc/meminfo")), re.MULTILINE))
    return int(kib.get("MemTotal", 0)) * 1024, int(kib.get("MemAvailable", 0)) * 1024


def _cuda_devices() -> list[dict[str, Any]]:
    """In the order of their indices; without those that a mask hides from this worker."""
    query = ("--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits")
    mask, devices = _mask(), []
    chosen = [] if mask is None else [f"--id={','.join(mask) or 'none'}"]
    for line in _said("nvidia-smi", *query, *chosen).splitlines():
        name, *sizes = (part.strip() for part in line.rsplit(",", 2))
        if len(sizes) == 2:
            total, free = (round(int(size) / 1024, 3) if size.isdecimal() else 0.0 for size in sizes)
            devices.append({"name": name, "vram_total_gib": total, "vram_free_gib": free})
    return devices


def _mask() -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to this worker; None: all of them."""
    words = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "all").split(",")]
    shown = filter(None, words[: [*words, "-1"].index("-1")])  # CUDA reads no further
    return None if words == ["all"] else sorted(shown, key=lambda word: (len(word), word))


def _said(*command: str) -> str:
    """What a program prints; nothing if it is not there, fails or hangs."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(command, input="", stderr=subprocess.DEVNULL, timeout=10, errors="replace")
    return ""


def tail(path: Path, size: int = MIB) -> str:
    """The end of a file; nothing, if it is not there."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size).decode(errors="replace")
    return ""


class Unpackable(ValueError):
    """There is something that an archive cannot carry."""


def pack(folder: str | Path, out: str | Path | BinaryIO) -> str:
    """Write the folder's canonical archive; its sha256. The same files are the same bytes, whoever packs them and when:
    sorted, without times and owners, and of the modes only whether a file may be executed."""
    entries, waiting = dict[str, "Path | None"](), [root := Path(folder)]
    while waiting:
        for path in waiting.pop().iterdir():
            is_folder = stat.S_ISDIR(look(path, root).st_mode)
            entries[path.relative_to(root).as_posix()] = None if is_folder else path
            waiting += [path] if is_folder else []
    return pack_entries(entries, out)


def look(path: Path, root: Path) -> os.stat_result:
    """What is there, a file or a folder. A link counts as the file of this same folder that it names."""
    if path.is_symlink() and not (path.is_file() and root.resolve() in path.resolve().parents):
        raise Unpackable(f"{path} is a link to {os.readlink(path)}, which is no file in here; leave it out, or copy it")
    if not stat.S_ISDIR((status := path.stat()).st_mode) and not stat.S_ISREG(status.st_mode):
        raise Unpackable(f"{path} is neither a file nor a folder")
    return status


def pack_entries(entries: Mapping[str, Path | None], out: str | Path | BinaryIO) -> str:
    """The same for files by their names in the archive; None is a folder."""
    if isinstance(out, (str, Path)):
        with open(out, "wb") as file:
            return pack_entries(entries, file)
    digest, written = hashlib.sha256(), 0
    for name in sorted(entries):
        for piece in _entry(name, entries[name]):
            digest.update(piece)
            out.write(piece)
            written += len(piece)
    end = bytes(1024 + -(written + 1024) % tarfile.RECORDSIZE)
    digest.update(end)
    out.write(end)
    return digest.hexdigest()


def _entry(name: str, path: Path | None) -> Iterator[bytes]:
    """The header of a folder, or the header and the content of a file; a pipe in its place is not waited for."""
    if re.search("[\ud800-\udfff]", name):
        raise Unpackable(f"{os.fsencode(path or name)!r}: its name is not UTF-8")
    header = tarfile.TarInfo(name)
    header.mode = 0o755
    if path is None:
        header.type = tarfile.DIRTYPE
        yield header.tobuf(tarfile.PAX_FORMAT)
        return
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as content:
        status = os.fstat(content.fileno())
        header.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        header.size = left = status.st_size
        yield header.tobuf(tarfile.PAX_FORMAT)
        while left > 0 and (piece := content.read(min(left, MIB))):
            left -= len(piece)
            yield piece
        if left or content.read(1):
            raise Unpackable(f"{path} changed while it was being packed")
        yield bytes(-status.st_size % tarfile.BLOCKSIZE)


# The worker

_NOT_THEIRS = re.compile(
    r"(?i)OSTLER_.*|(.*_)?(TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE)(_.*)?|.*(API_?KEY|ACCESS_KEY|PRIVATE_KEY)"
    r"|NOTIFY_SOCKET|LISTEN_.*|WATCHDOG_.*|INVOCATION_ID"
)
"""Variables that tasks do not inherit: secrets of whoever runs the worker, and its service manager's words to it."""


class Failed(Exception):
    """The job's end, as the hub is told of it: the error, and what else is said."""


class Lost(Exception):
    """The job is not ours any more: the hub is told nothing."""


class Task:
    """One claimed job: its processes, its log, and a thread that keeps up the hub's lease on it."""

    def __init__(self, worker: Worker, job: Mapping[str, Any]) -> None:
        self._worker, self._client, self._job = worker, worker.client, job
        self._id, _, self._attempt = self._who = str(job["job_id"]), worker.options.hostname, str(job["attempt"])
        self._task_id, self._lease_s = str(job.get("task_id") or self._id), float(job.get("lease_s") or 600.0)
        self._folder = worker.folder / "jobs" / quote(self._attempt, safe="")
        self._out, self._log_file = self._folder / "out", self._folder / "log"
        run = "@".join(filter(None, (self._id, job.get("after"))))  # what has led to one success leads to no other
        self._checkpoint = worker.folder / "checkpoints" / quote(run, safe="")
        self._cut_off_s = worker.options.cut_off_seconds or self._lease_s - GRACE_S - SPARE_S
        self._heard_at, self._word, self._over = worker.client.claimed_at, "", threading.Event()

    def carry_out(self) -> bool:
        """Run it and report its end; True if it is complete."""
        _log.info("%s (%s), attempt %s: begins", self._id, self._job.get("name"), self._attempt)
        threading.Thread(target=self._keep_lease, daemon=True).start()
        try:
            self._run()
            self._complete()
            shutil.rmtree(self._checkpoint, ignore_errors=True)
            _log.info("%s: complete", self._id)
            return True
        except Failed as failure:
            error, more = failure.args
            if getattr(failure.__cause__, "errno", 0) in (errno.ENOSPC, errno.EROFS, errno.EIO):
                more = {"returned": True, "fault": "worker"}  # this machine's disk is to blame, and no job
            _log.warning("%s: failed: %s", self._id, error)
            with contextlib.suppress(Failed, Lost, Refused, Unreachable):
                self._send_log()
                self._tell(lambda: self._client.fail(*self._who, error=error, **more))
        except Lost as reason:
            _log.warning("%s: given up: %s", self._id, reason)
        finally:
            self._over.set()
            shutil.rmtree(self._folder, ignore_errors=True)
        return False

    def _run(self) -> None:
        try:
            process = self._spawn()
        except (OSError, ValueError) as error:
            raise Failed(f"it cannot be started: {error}", {"exit_code": 127}) from error
        try:
            while process.poll() is None:
                self._check()
                time.sleep(LOOK_S)
        finally:
            self._kill(process)
        if process.returncode:
            code = process.returncode if process.returncode > 0 else 128 - process.returncode
            last = (tail(self._log_file, 8192).strip().splitlines() or ["it printed nothing"])[-1]
            raise Failed(f"exit code {code}: {last.strip()[:500]}", {"exit_code": code})

    def _spawn(self) -> subprocess.Popen[Any]:
        for folder in (self._checkpoint, self._out, work := self._folder / "work"):
            folder.mkdir(parents=True, exist_ok=True)
        own = ((name, value) for name, value in os.environ.items() if not _NOT_THEIRS.fullmatch(name))
        env = {name: value for name, value in own if self._client.token not in value}
        env.update({"PYTHONUNBUFFERED": "1", "OSTLER_CA": self._client.ca, **(self._job.get("env") or {})})
        env.update(OSTLER_JOB_ID=self._id, OSTLER_TASK_ID=self._task_id, OSTLER_ATTEMPT=self._attempt)
        env.update(OSTLER_OUT=str(self._out), OSTLER_CHECKPOINT=str(self._checkpoint), OSTLER_HUB=self._client.hub)
        mask, granted = _mask(), self._job.get("devices")
        if mask and granted:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(mask[index] for index in granted)
        place = re.compile(r"\$(OSTLER_OUT|OSTLER_CHECKPOINT)\b")
        program, *arguments = (place.sub(lambda found: env[found[1]], word) for word in self._job["command"])
        argv = [sys.executable if program == "{python}" else program, *arguments]
        group: dict[str, Any] = {"creationflags": 0x200} if sys.platform == "win32" else {"start_new_session": True}
        with open(self._log_file, "wb") as log, open(os.devnull, "rb") as nothing:
            return subprocess.Popen(argv, cwd=work, env=env, stdin=nothing, stdout=log, stderr=log, **group)

    def _kill(self, process: subprocess.Popen[Any]) -> None:
        """End what is left of a task, by SIGTERM and then by SIGKILL: its group, and what has left that."""
        if sys.platform == "win32":
            process.send_signal(signal.CTRL_BREAK_EVENT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            _said("taskkill", "/F", "/T", "/PID", str(process.pid))
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # as soon as nobody is left
                os.killpg(process.pid, signal.SIGTERM)
                for _ in range(int(GRACE_S / LOOK_S)):
                    process.poll()
                    os.killpg(process.pid, 0)
                    time.sleep(LOOK_S)
                os.killpg(process.pid, signal.SIGKILL)
            end_marked(self._attempt)
        process.wait()

    def _complete(self) -> None:
        try:
            artifact_id, bundle = "", self._folder / "bundle.tar"
            if any(self._out.iterdir()):
                artifact_id = pack(self._out, bundle)
                self._client.upload(bundle, artifact_id, self._check, tries=100)
            self._send_log()
            result: Any = {"artifact_id": artifact_id, "metrics": metrics(self._out, self._log_file)}
            self._tell(lambda: self._client.complete(*self._who, **result))
        except (Refused, Unreachable, Unpackable, OSError) as error:
            raise Failed(f"its outputs could not be handed over: {error}", {}) from error

    def _check(self, is_over: bool = False) -> None:
        """Raises when there is a reason to stop it; or, if it is over, to tell the hub no more."""
        silent_s = _clock() - self._heard_at
        if self._word == TAKEN:
            raise Lost(TAKEN)
        if silent_s >= (self._lease_s if is_over else self._cut_off_s):
            raise Lost(f"cut off from the hub for {silent_s:.0f} s")
        if self._word == CANCELLED and not is_over:
            raise Failed(CANCELLED, {})
        if _clock() >= self._worker.leave_at + is_over * GRACE_S:
            raise Failed("the worker is leaving", {"returned": True})

    def _tell(self, call: Callable[[], T]) -> T:
        return persist(call, lambda: self._check(is_over=True), sys.maxsize)

    def _keep_lease(self) -> None:
        every_s, pause_s = min(self._worker.options.heartbeat_seconds, self._lease_s / 3), 0.0
        while not (self._over.wait(pause_s) or self._word or _clock() >= self._heard_at + self._cut_off_s):
            sent_at, pause_s = _clock(), every_s
            lines = reversed(tail(self._log_file, MIB // 16).splitlines())
            try:
                is_unwanted = self._client.heartbeat(*self._who, next(filter(None, map(numbers, lines)), None))
                self._heard_at, self._word = sent_at, CANCELLED if is_unwanted else ""
            except (Refused, Unreachable) as error:
                self._word = TAKEN if isinstance(error, Refused) and error.status in (404, 409) else ""
                pause_s = min(every_s, 5.0)
                _log.warning("%s: %s", self._id, error)

    def _send_log(self) -> None:
        """All of it, or its first and its last MiB."""
        with contextlib.suppress(OSError, Refused), open(self._log_file, "rb") as file:
            data, left_out = file.read(2 * MIB), os.fstat(file.fileno()).st_size - 2 * MIB
            if left_out > 0:
                file.seek(left_out + MIB)
                data = b"%b\n[ostler: %d bytes left out here]\n%b" % (data[:MIB], left_out, file.read(MIB))
            self._tell(lambda: self._client.append_log(self._task_id, self._attempt, 0, data, final=True))


def numbers(line: str) -> dict[str, float]:
    """Those of a line that is a JSON object."""
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(line) if line.lstrip().startswith("{") else {}
        return {name: float(one) for name, one in document.items() if type(one) in (int, float) and abs(one) < 1e308}
    return {}


def metrics(out: Path, log: Path) -> dict[str, float]:
    """The last value of each number in $OSTLER_OUT/metrics.jsonl; without that file, of those that were printed."""
    file, found = out / "metrics.jsonl", dict[str, float]()
    for line in tail(file if file.is_file() else log, 16 * MIB).splitlines():
        found.update(numbers(line))
    return dict(list(found.items())[:64])


def end_marked(attempt: str) -> None:
    """On Linux, kill all that was started with this attempt's environment, in whatever group or session it is now."""
    mark = f"OSTLER_ATTEMPT={attempt}\0"
    while found := [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark in tail(path)]:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(LOOK_S)


class Worker:
    """Job after job, in a folder of its own."""

    def __init__(self, client: Client, options: argparse.Namespace) -> None:
        temporary = Path(tempfile.gettempdir(), f"ostler-{Path.home().name}-{quote(options.hostname, safe='')}")
        state = Path(options.state_dir, "workers", options.hostname) if options.state_dir else None
        self.folder = Path(options.work or state or temporary).absolute()
        self.client, self.options, self.leave_at = client, options, NEVER
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sys.platform != "win32":
            import fcntl

            if self.folder.is_symlink() or self.folder.stat().st_uid != os.getuid():
                raise ValueError(f"{self.folder} belongs to somebody else: give another folder with --work")
            self._lock = open(self.folder / "lock", "w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(f"another worker uses {self.folder}: give this one its own with --work") from None
        for left in (self.folder / "jobs").glob("*"):  # of a worker that was killed
            end_marked(left.name)
            shutil.rmtree(left, ignore_errors=True)

    def on_signal(self, *_: object) -> None:
        """The first: no more claims, and the task may end in peace; the second: now."""
        self.leave_at = _clock() + (self.options.drain_seconds if self.leave_at == NEVER else 0.0)

    def serve(self) -> int:
        """Until it is told to leave, or has run as many jobs as it should; the exit code."""
        done, told, is_complete, once = 0, "", True, self.options.once
        jobs, tries = (1, 1) if once else (self.options.jobs, sys.maxsize)
        while done < jobs:
            self._check()
            for left in (self.folder / "checkpoints").glob("*"):  # of a job that failed here, or went elsewhere
                if time.time() - max(one.lstat().st_mtime for one in (left, *left.rglob("*"))) > KEEP_S:
                    shutil.rmtree(left, ignore_errors=True)
            job = persist(lambda: self.client.claim(self.options.hostname, detect()), self._check, tries)
            if job is not None:
                done, told, is_complete = done + 1, "", Task(self, job).carry_out()
                continue
            if (reason := self.client.reason or "the queue has nothing for it") != told:
                _log.info("nothing to do: %s", told := reason)
            if once:
                return 5
            _pause(self.options.poll * random.uniform(0.75, 1.25), self._check)
        return 0 if is_complete or not once else 1

    def _check(self) -> None:
        if self.leave_at < NEVER:
            sys.exit(0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("pull", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hub", default=os.environ.get("OSTLER_HUB", "http://127.0.0.1:7600"), help="its address; else $OSTLER_HUB")
    add("--token", default=os.environ.get("OSTLER_TOKEN", ""), help="a word or @FILE; else $OSTLER_TOKEN")
    add("--ca", default=os.environ.get("OSTLER_CA", ""), help="a file: the certificate of the hub; else $OSTLER_CA")
    add("--hostname", "--name", default=socket.gethostname(), help="the name of this worker (%(default)s)")
    add("--work", metavar="DIR", help="for running jobs and their checkpoints; else one among the temporary files")
    add("--state-dir", metavar="DIR", help="where workers of this machine keep their folders: --work is among them")
    add("--poll", type=float, default=10.0, metavar="S", help="ask so often while nothing is to do (%(default)g)")
    add("--heartbeat-seconds", type=float, default=30.0, metavar="S", help="say so often that it lives (%(default)g)")
    add("--drain-seconds", type=float, default=600.0, metavar="S", help="what a job gets after SIGTERM (%(default)g)")
    add("--cut-off-seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    add("--jobs", type=int, default=sys.maxsize, metavar="N", help="leave after so many jobs")
    add("--once", action="store_true", help="ask once, and leave after that job")
    add("--check", action="store_true", help="print what this machine has, as JSON, and leave")
    if (options := parser.parse_args(argv)).check:
        print(json.dumps(found := detect(), indent=2))
        return 0 if found["cpu_cores"] and found["ram_total_gib"] else 1
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        token = options.token if options.token[:1] != "@" else Path(options.token[1:]).read_text().strip()
        if token == options.token != os.environ.get("OSTLER_TOKEN"):
            _log.warning("a token on the command line can be read by everybody on this machine: use --token @FILE")
        worker = Worker(Client(options.hub, token, ca=options.ca), options)
        for number in {getattr(signal, name, signal.SIGTERM) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK")}:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, worker.on_signal)
        return worker.serve()
    except (Refused, Unreachable, ValueError, OSError) as error:
        _log.error("%s", error)
        return 3 if isinstance(error, Unreachable) else 4 if getattr(error, "status", 0) in (401, 403) else 2


if __name__ == "__main__":
    sys.exit(main())
