"""What must hold before a machine joins: looked at in order, one line each, nothing changed by it."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from ostler import __version__
from ostler.client.errors import HubUnreachable
from ostler.client.http import Hub
from ostler.client.transport import Patience, Transport
from ostler.domain.errors import NotAllowed, NotAuthenticated, OstlerError
from ostler.tls import Trust

PATIENCE = Patience(tries=2)
SPAWN_S = 60.0
MIN_DISK_BYTES = 1024**3
MAX_CLOCK_S = 60.0
JOINING = ("join", "join-once", "worker")


class Check(NamedTuple):
    what: str
    ok: bool
    told: str
    """What was found; of a failure, also what to do."""


def checks(url: str, token: str, state: Path, spawns: Callable[[Path], str], trust: Trust) -> Iterator[Check]:
    """Each as soon as it is known; without an answer of the hub, those that need none. `spawns` is told a folder, and
    tells what is wrong with it."""
    try:
        begun = time.time()
        answer = Transport(url, "", PATIENCE, trust).request("GET", "/v1/health")
        version = _version(answer.body)
    except OstlerError as error:
        yield Check("hub", False, str(error))
    else:
        yield Check("hub", True, f"{url} answers; it is version {version}, this is {__version__}")
        yield _clock(answer.headers.get("Date", ""), (begun + time.time()) / 2)
        yield _token(url, token, trust)
    yield _machine(state)
    yield _disk(state)
    yield _process(state, spawns)


def _version(body: bytes) -> str:
    import json

    try:
        return str(json.loads(body)["version"])
    except (ValueError, KeyError, TypeError):
        raise HubUnreachable("what answers there is not an Ostler hub; correct the address") from None


def _clock(date: str, now: float) -> Check:
    try:
        ahead_s = now - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return Check("clock", True, "the hub's answer tells no time to compare with")
    told = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the hub's"
    if abs(ahead_s) <= MAX_CLOCK_S:
        return Check("clock", True, told)
    return Check("clock", False, f"{told}; set it (timedatectl set-ntp true), or set the hub's")


def _token(url: str, token: str, trust: Trust) -> Check:
    try:
        with Hub(url, token, patience=PATIENCE, trust=trust) as hub:
            role = str(hub.me().get("role", "unknown"))
    except NotAllowed:
        # A single-use one may do nothing but join, not even ask whose it is.
        role = "join-once"
    except NotAuthenticated as error:
        told = (
            "the hub does not know it; `ostler token create --join` makes one" if "Bearer" in str(error) else str(error)
        )
        return Check("token", False, told)
    except OstlerError as error:
        return Check("token", False, str(error))
    if role in JOINING:
        return Check("token", True, "the hub knows it")
    return Check(
        "token", False, f"it is one of role {role}; `ostler token create --join` makes one that lets machines in"
    )


def _machine(state: Path) -> Check:
    from ostler.runtime import probe

    found = probe.detect(folder=_existing(state))
    fit_for = probe.describe(found.capabilities)
    if not fit_for:
        return Check("machine", False, "it has no cores or no memory to give; `ostler worker --check` tells more")
    return Check("machine", True, "fit for " + "; ".join(fit_for))


def _disk(state: Path) -> Check:
    free = shutil.disk_usage(_existing(state)).free
    told = f"{free / 1024**3:.1f} GiB free for {state}"
    if free >= MIN_DISK_BYTES:
        return Check("disk", True, told)
    return Check("disk", False, f"{told}; make room for at least 1 GiB, or choose another folder (--state-dir)")


def _process(state: Path, spawns: Callable[[Path], str]) -> Check:
    """A task as a worker would start it, in the folder where workers keep theirs."""
    folder = state / "workers"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".check-", dir=folder, ignore_cleanup_errors=True) as place:
            wrong = spawns(Path(place))
    except OSError as error:
        wrong = error.strerror or str(error)
    if not wrong:
        return Check("process", True, f"one ran in {folder}")
    return Check("process", False, f"none can be run in {folder}: {wrong}; choose another folder (--state-dir)")


def spawn_supervised(folder: Path) -> str:
    """By a supervisor, as a worker does it. What is wrong, or nothing."""
    import asyncio

    from ostler.runtime.link import SupervisorUnreachable

    try:
        return asyncio.run(_run_task(folder))
    except (SupervisorUnreachable, TimeoutError) as error:
        return str(error) or f"it did not end within {SPAWN_S:.0f} s"


async def _run_task(folder: Path) -> str:
    import asyncio

    from ostler.runtime.base import Launch
    from ostler.runtime.process import ProcessRuntime

    runtime = ProcessRuntime(folder, idle_exit_s=1.0)
    async with asyncio.timeout(SPAWN_S):
        await runtime.open()
        try:
            argv = [sys.executable, "-c", "pass"]
            await runtime.launch(Launch(attempt="check", task_id="check", argv=argv, env=dict(os.environ)))
            end = await anext(runtime.ends())
        finally:
            await runtime.close(stop_tasks=True)
    return "" if end.exit_code == 0 else end.error or f"it ended with exit code {end.exit_code}"


def spawn_plainly(folder: Path) -> str:
    try:
        done = subprocess.run([sys.executable, "-c", "pass"], cwd=folder, timeout=SPAWN_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it did not end within {SPAWN_S:.0f} s"
    return "" if done.returncode == 0 else f"it ended with exit code {done.returncode}"


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())
