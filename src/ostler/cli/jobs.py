"""Jobs: submit, run, list, look at, stop, run again."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler.cli import exits, follow
from ostler.cli.options import Access, JobId, JobIds, Json
from ostler.cli.paging import newest
from ostler.cli.render.terminal import is_terminal, note, show_json
from ostler.cli.render.terminal import show as show_parts
from ostler.cli.render.words import titled
from ostler.cli.session import connect
from ostler.cli.spec import SpecOptions, build_spec, left_behind
from ostler.domain import states
from ostler.domain.errors import BadInput, NotFound, OstlerError

if TYPE_CHECKING:
    from ostler.client.http import Hub

Document = dict[str, Any]
PAGE = 30
MOST_REASONS = 12
"""Waiting jobs of a list whose reason is asked for: each is a request of its own."""


def submit(
    spec: SpecOptions,
    access: Access,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; exit 0 if it succeeded, else 1.")] = False,
    follow_log: Annotated[bool, typer.Option("--follow", help="The same as `ostler run`.")] = False,
    json: Json = False,
) -> int:
    """Queue a job and print its id.

    ostler submit --gpus 1 --memory 16g -- python3 train.py
    """
    if follow_log:
        if json or wait:
            raise BadInput("--follow shows the job's own output: it goes with neither --wait nor --json")
        return run(spec, access)
    document = build_spec(spec)
    with connect(access) as hub:
        answer = _submitted(hub, document, spec.snapshot)
        if not json:
            print(answer["id"], flush=True)
        elif not wait:
            show_json(answer)
        if wait:
            return follow.wait_for(hub, [answer["id"]], None, json)
    if is_terminal(sys.stdout) and not json:
        note(f"follow it with: ostler logs -f {answer['id']}")
    return exits.DONE


def run(spec: SpecOptions, access: Access) -> int:
    """Queue a job, show its output, exit with its exit code."""
    document = build_spec(spec)
    if document.get("array"):
        raise BadInput(
            "--array: an array has many outputs; use `ostler submit --array N --wait`", [("array", "not here")]
        )
    with connect(access) as hub:
        answer = _submitted(hub, document, spec.snapshot)
        return follow.attend(hub, answer["id"], document.get("name") or "")


def _whole_id(hub: "Hub", text: str) -> str:
    """A name stands for its newest job, and an id may be cut short, as everywhere. What is not found is left to the
    hub: it may know of the end of a job that is gone."""
    try:
        return str(hub.job(text)["id"])
    except NotFound:
        return text


def _submitted(hub: "Hub", spec: Document, folder: Path | None) -> Document:
    if isinstance(after := spec.get("depends_on"), list):
        spec = {**spec, "depends_on": [_whole_id(hub, one) if isinstance(one, str) else one for one in after]}
    if folder is not None:
        sha256 = _sent(hub, folder)
        spec = {**spec, "snapshot_id": sha256, "snapshot_sha": sha256}  # a template may bring another
    from ostler.client.carrying import carried

    answer = hub.submit(carried(spec, traced="id" not in spec))
    for remark in answer.get("notes") or []:
        note(f"note: {remark}")
    may_have_one = "snapshot_id" in spec or "template" in spec
    if not may_have_one and (file := left_behind(spec.get("command") or [])):
        note(f"note: the job starts in an empty folder, without {file}; --snapshot . takes this folder along")
    return answer


def _sent(hub: "Hub", folder: Path) -> str:
    """The id of this folder's snapshot, which the hub has when this returns."""
    from ostler.cli.render.progress import UploadBar
    from ostler.client import snapshots

    with UploadBar(f"sending {folder}") if is_terminal(sys.stderr) else nullcontext() as bar:
        sent = snapshots.send(hub, folder, progress=bar)
    for remark in sent.notes:
        note(f"note: {remark}")
    return sent.id


def jobs(
    access: Access,
    state: Annotated[
        str | None,
        typer.Option("--state", "--status", metavar="STATES", help="Only these: pending,running,failed, …"),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Only those that have not ended.")] = False,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only those of this name.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Only those of this user.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="The newest so many.")] = PAGE,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the jobs by which a manifest's programs were asked for their options.")
    ] = False,
    json: Json = False,
) -> int:
    """List jobs, the newest first."""
    if live and state:
        raise BadInput("--live: is itself a choice of states; give it or --state, not both", [("live", "with --state")])
    with connect(access) as hub:
        filters = {"state": ",".join(states.LIVE) if live else state, "name": name, "user": user}
        page = newest(hub.jobs if everything or name else partial(_without_checks, hub), "jobs", filters, limit)
        if json:
            show_json(page)
            return exits.DONE
        _tell_reasons(hub, page["jobs"])
    from ostler.cli.render.jobs import job_table

    show_parts(job_table(page["jobs"]))
    if page["next"] is not None:
        note(f"these are the newest {limit}; --limit N shows more")
    return exits.DONE


def _without_checks(hub: "Hub", **asked: Any) -> Document:
    """A page without the jobs that ask a manifest's programs: a check of a manifest would push out the user's jobs."""
    from ostler.cli.drift import CHECK

    page = hub.jobs(**asked)
    return {**page, "jobs": [job for job in page["jobs"] if not (job["name"] or "").startswith(CHECK)]}


def _tell_reasons(hub: "Hub", listed: list[Document]) -> None:
    """A list says why a job ended; why one waits is worked out when somebody asks."""
    waiting = [job for job in listed if job["state"] == states.PENDING and not job.get("reason")]
    for job in waiting[:MOST_REASONS]:
        try:
            job["reason"] = hub.why(job["id"], brief=True)["summary"]
        except OstlerError:
            continue  # it may be gone by now; the list stands without it


def show(
    job: JobId,
    access: Access,
    tasks: Annotated[bool, typer.Option("--tasks", help="List the tasks of an array.")] = False,
    json: Json = False,
) -> int:
    """Show all there is to know about a job."""
    with connect(access) as hub:
        document = hub.job(job)
        rows = list(hub.all_tasks(document["id"])) if tasks else []
    if json:
        show_json({**document, "tasks": rows} if tasks else document)
        return exits.DONE
    from ostler.cli.render.jobs import job_screen, task_table

    show_parts(*([task_table(rows)] if tasks else [job_screen(document)]))
    return exits.DONE


def cancel(jobs: JobIds, access: Access, json: Json = False) -> int:
    """Stop jobs, whether they wait or run."""
    with connect(access) as hub:
        return _each(jobs, hub.cancel, _told_cancelled, json)


def requeue(jobs: JobIds, access: Access, json: Json = False) -> int:
    """Run jobs again, also those that have ended."""
    with connect(access) as hub:
        return _each(jobs, hub.requeue, lambda job: f"{titled(job)} waits for a place again", json)


def priority(
    value: Annotated[int, typer.Argument(metavar="PRIORITY", help="Higher goes first; 0 is usual.")],
    jobs: JobIds,
    access: Access,
    json: Json = False,
) -> int:
    """Give jobs another priority while they wait or run."""
    with connect(access) as hub:
        told = f"has priority {value}"
        return _each(jobs, lambda job_id: hub.prioritize(job_id, value), lambda job: f"{titled(job)} {told}", json)


def _told_cancelled(job: Document) -> str:
    if job["state"] == states.CANCELLED:
        return f"cancelled {titled(job)}"
    if job["state"] in states.TERMINAL:
        return f"{titled(job)} had ended before: {job['state']}"
    return f"{titled(job)} is being stopped"


def _each(ids: list[str], act: Callable[[str], Document], told: Callable[[Document], str], as_json: bool) -> int:
    """Do it to all of them; one that cannot be done does not keep the others from it. The first error's exit code."""
    documents, code = [], exits.DONE
    for job_id in ids:
        try:
            documents.append(act(job_id))
        except OstlerError as error:
            exits.complain(exits.sentence_of(error))
            code = code or exits.code_of(error)
            if code == exits.UNREACHABLE:
                break
            continue
        if not as_json:
            print(told(documents[-1]))
    if as_json:
        show_json({"jobs": documents})
    return code
