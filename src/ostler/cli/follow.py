"""Staying with jobs until they end: their output, their exit code, or only the waiting."""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler.cli import exits
from ostler.cli.options import Access, JobId, JobIds, Json, Timeout
from ostler.cli.render.terminal import is_terminal, note, show_json
from ostler.cli.render.words import clean, exit_code_words, titled
from ostler.cli.session import connect
from ostler.domain import states
from ostler.domain.errors import BadInput
from ostler.domain.quantities import parse_duration

if TYPE_CHECKING:
    from ostler.client.http import Hub

Document = dict[str, Any]
LOOK_S = 20.0
"""How long one question to the hub may wait for a job's end."""
REFRESH_S = 1.0
"""The same where somebody watches the progress."""
WHY_S = 5.0
MOST_WATCHED = 20
"""Of many jobs so many are asked for once a second, for the bar."""


def logs(
    job: JobId,
    access: Access,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    attempt: Annotated[
        str | None, typer.Option("--attempt", metavar="A", help="Of this attempt; `ostler show --json` names them.")
    ] = None,
) -> int:
    """Print a job's output, exactly as it was written.

    Of an array: that of one task, as in `ostler logs sweep.17`.
    """
    with connect(access) as hub:
        _must_be_one_task(hub.job(job))
        for chunk in hub.logs(job, follow=follow, attempt=attempt):
            _write(chunk)
    return exits.DONE


def _must_be_one_task(job: Document) -> None:
    if job.get("counts"):
        raise BadInput(f"{titled(job)} is an array and each of its tasks has its own log: ostler logs {job['id']}.0")


def _write(chunk: bytes) -> None:
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def attend(hub: "Hub", job_id: str, name: str = "") -> int:
    """Show a job's output to the end; the job's own exit code. An interrupt asks what is to become of the job."""
    from ostler.client.errors import HubUnreachable

    called = f"{name} ({job_id})" if name else job_id
    note(f"job {called}")
    try:
        _until_placed(hub, job_id, called)
        for chunk in hub.logs(job_id, follow=True):
            _write(chunk)
        job = _ended(hub, job_id)
    except KeyboardInterrupt:
        return _leave(hub, job_id)
    except HubUnreachable:
        note(f"lost the hub; the job goes on without it. When it is back: ostler logs -f {job_id}")
        raise
    if job["state"] != states.SUCCEEDED:
        note(f"ostler: {called} {told_end(job)}")
    return exit_code_of(job)


def _until_placed(hub: "Hub", job_id: str, called: str) -> None:
    """On a terminal: say why nothing is shown yet."""
    if not is_terminal(sys.stderr) or hub.job(job_id)["state"] != states.PENDING:
        return
    from ostler.cli.render.progress import PlaceLine

    with PlaceLine(called) as line:
        asked_at, why = -WHY_S, ""
        while (job := look(hub, job_id, REFRESH_S / 2))["state"] == states.PENDING:
            if time.monotonic() - asked_at >= WHY_S:
                asked_at = time.monotonic()
                why = job.get("reason") or _why(hub, job_id)
            line(why)


def _why(hub: "Hub", job_id: str) -> str:
    from ostler.client.errors import HubUnreachable, NotFound

    try:
        return str(hub.why(job_id, brief=True)["summary"])
    except (HubUnreachable, NotFound):
        return ""


def _ended(hub: "Hub", job_id: str) -> Document:
    while True:
        job = look(hub, job_id, LOOK_S)
        if job["state"] in states.TERMINAL:
            return job


def look(hub: "Hub", job_id: str, wait_s: float) -> Document:
    """The job, when it has ended or so much time is over. A hub that restarts meanwhile is waited for."""
    from ostler.client.errors import HubUnreachable
    from ostler.client.streams import Outage

    outage = Outage(hub.patience)
    while True:
        try:
            return hub.job(job_id, wait=wait_s)
        except HubUnreachable as error:
            outage.endure(error)


def _leave(hub: "Hub", job_id: str) -> int:
    """Whoever can be asked is asked. Else the job goes on: a lost terminal is no reason to lose hours of work."""
    if is_terminal(sys.stdin) and is_terminal(sys.stderr) and _wants_cancel():
        hub.cancel(job_id)
        note(f"cancelled {job_id}")
        return exits.INTERRUPTED
    note(f"the job goes on; see it again with: ostler logs -f {job_id}\nend it with: ostler cancel {job_id}")
    return exits.INTERRUPTED


def _wants_cancel() -> bool:
    sys.stderr.write("\nCancel the job? Otherwise it goes on without you. [y/N] ")
    sys.stderr.flush()
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return False


def exit_code_of(job: Document) -> int:
    """The process's own, 128 + n if signal n ended it; 1 for a job that ended without one."""
    code = job.get("exit_code")
    if job["state"] == states.SUCCEEDED:
        return exits.DONE
    if not isinstance(code, int) or code == 0:
        return exits.FAILED
    return 128 - code if code < 0 else code & 0xFF or exits.FAILED


def told_end(job: Document) -> str:
    """'failed: exit code 3', 'was cancelled', …"""
    state = {states.CANCELLED: "was cancelled", states.UNSCHEDULABLE: "could not be placed"}.get(
        job["state"], job["state"]
    )
    reason = clean(job.get("reason") or "")
    if not reason and job.get("exit_code") is not None:
        reason = f"exit code {exit_code_words(job['exit_code'])}"
    return f"{state}: {reason}" if reason and reason != job["state"] else str(state)


def wait(
    jobs: JobIds,
    access: Access,
    timeout: Timeout = None,
    json: Json = False,
) -> int:
    """Wait until jobs have ended.

    Exits with 0 if all succeeded, with 1 if one did not, with 6 if time ran out.
    """
    seconds = None if timeout is None else parse_duration(timeout, "--timeout")
    with connect(access) as hub:
        return wait_for(hub, jobs, seconds, json)


def wait_for(hub: "Hub", ids: list[str], timeout_s: float | None, as_json: bool) -> int:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    # A name means its newest job: the one of this moment, not one that comes while we wait.
    found = {document["id"]: document for document in (hub.job(one) for one in ids)}
    try:
        with progress(len(found)) as shown:
            _until_ended(hub, found, deadline, shown)
    except KeyboardInterrupt:
        note("no longer waiting; the jobs go on")
        return exits.INTERRUPTED
    if as_json:
        show_json({"jobs": list(found.values())})
    return _verdict(found)


def _verdict(found: dict[str, Document]) -> int:
    open_ones = [job for job in found.values() if job["state"] not in states.TERMINAL]
    bad = [job for job in found.values() if job["state"] in states.TERMINAL and job["state"] != states.SUCCEEDED]
    for job in bad:
        note(f"ostler: {titled(job)} {told_end(job)}")
    for job in open_ones:
        note(f"ostler: time is up and {titled(job)} is {job['state']}; it goes on")
    return exits.TIMED_OUT if open_ones else exits.FAILED if bad else exits.DONE


Shown = Callable[[dict[str, Document]], None]


def _until_ended(hub: "Hub", found: dict[str, Document], deadline: float | None, shown: Shown | None) -> None:
    """Ask for one job after the other: whoever waits for all may wait for each in turn."""
    for job_id in found:
        while found[job_id]["state"] not in states.TERMINAL:
            look_s = REFRESH_S if shown else LOOK_S
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    # The others may have ended meanwhile, and their part of the verdict is asked for too.
                    found.update({one: hub.job(one) for one in found if found[one]["state"] not in states.TERMINAL})
                    return
                look_s = min(look_s, left)
            found[job_id] = look(hub, job_id, look_s)
            if shown:
                _refresh(hub, found, job_id)
                shown(found)


def _refresh(hub: "Hub", found: dict[str, Document], job_id: str) -> None:
    """The others too, as far as they still run, so that the bar tells of all."""
    live = [one for one in found if one != job_id and found[one]["state"] not in states.TERMINAL]
    for other in live[:MOST_WATCHED]:
        found[other] = look(hub, other, 0.0)


def progress(jobs: int) -> Any:
    """A bar on a terminal, over all tasks of all jobs; nothing elsewhere."""
    if not is_terminal(sys.stderr):
        return nullcontext(None)
    from ostler.cli.render.progress import WaitBar

    return WaitBar(jobs)
