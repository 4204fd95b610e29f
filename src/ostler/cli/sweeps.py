"""Sweeps: the runs that a manifest makes of a grid or a list, seen and handled as one."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler.cli import exits, follow
from ostler.cli.options import Access, Json, Timeout
from ostler.cli.render.terminal import is_terminal, note, show_json
from ostler.cli.render.terminal import show as show_parts
from ostler.cli.render.words import clean, count
from ostler.cli.session import connect
from ostler.domain import states
from ostler.domain.errors import BadInput
from ostler.domain.quantities import parse_duration

if TYPE_CHECKING:
    from ostler.client.http import Hub

Document = dict[str, Any]
LIVE = ("pending", "claimed", "running")
STATES = {"completed": states.SUCCEEDED, "claimed": states.ASSIGNED}
"""Of statuses, where they are called otherwise."""
UNFORTUNATE = ("failed", "cancelled", "unschedulable")

SweepName = Annotated[
    str, typer.Argument(metavar="NAME", help="A sweep's name, or the beginning of it.", show_default=False)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def sweeps(ctx: typer.Context, access: Access, json: Json = False) -> int:
    """List the sweeps of the manifest, or look after one."""
    ctx.obj = access
    if ctx.invoked_subcommand is not None:
        return exits.DONE
    with connect(access) as hub:
        found = hub.sweeps()
    if json:
        show_json({"sweeps": found, "next": None})
        return exits.DONE
    from ostler.cli.render.sweeps import sweep_table

    show_parts(sweep_table(found))
    return exits.DONE


def show(
    sweep: SweepName,
    access: Access,
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="M", help="Compare by this one instead of the manifest's.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every run, however many there are.")] = False,
    json: Json = False,
) -> int:
    """Show a sweep: its runs, the best first, and a picture.

    The picture is of the metric over what was swept: points over one number, a table of two parameters, else bars.
    """
    with connect(access) as hub:
        found = hub.sweep(sweep, metric=metric)
    measured = sorted({name for job in found["jobs"] for name in job["metrics"]})
    if metric and metric not in measured:
        known = f"there are: {', '.join(measured)}" if measured else "none has reported anything yet"
        raise BadInput(f"--metric: no run of {found['name']} has {metric!r}; {known}", [("metric", "not measured")])
    if json:
        show_json(found)
        return exits.DONE
    from ostler.cli.render.sweeps import sweep_screen

    show_parts(sweep_screen(found, every=every))
    return exits.DONE


def cancel(sweep: SweepName, access: Access, yes: Yes = False, json: Json = False) -> int:
    """Stop the runs of a sweep that have not ended."""
    with connect(access) as hub:
        found = hub.sweep(sweep)
        number = len(_in(found, LIVE))
        if not _is_sure(f"Cancel {_so_many(number, found)}?", yes):
            return exits.FAILED
        answer = hub.cancel_sweep(found["name"])
    return _told(answer, f"cancelled {_so_many(number, found)}", json)


def requeue(
    sweep: SweepName,
    access: Access,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that ended without success.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Run a sweep again, also what of it has ended well."""
    with connect(access) as hub:
        found = hub.sweep(sweep)
        chosen = _in(found, UNFORTUNATE) if failed else found["jobs"]
        done = 0 if failed else len(_in(found, ("completed",)))
        completed = f", {done} of them completed" if done else ""
        if not _is_sure(f"Run {_so_many(len(chosen), found)} again{completed}?", yes):
            return exits.FAILED
        if failed:
            for job in chosen:
                hub.requeue(job["job_id"])
        answer = hub.sweep(found["name"]) if failed else hub.requeue_sweep(found["name"])
    waits = "waits" if len(chosen) == 1 else "wait"
    return _told(answer, f"{_so_many(len(chosen), found)} {waits} for a place again", json)


def wait(
    sweep: SweepName,
    access: Access,
    timeout: Timeout = None,
    json: Json = False,
) -> int:
    """Wait until all runs of a sweep have ended.

    Exits with 0 if all completed, with 1 if one did not, with 6 if time ran out.
    """
    seconds = None if timeout is None else parse_duration(timeout, "--timeout")
    with connect(access) as hub:
        found = hub.sweep(sweep)
        try:
            found = _until_ended(hub, found, None if seconds is None else time.monotonic() + seconds)
        except KeyboardInterrupt:
            note("no longer waiting; the runs go on")
            return exits.INTERRUPTED
    if json:
        show_json(found)
    live, bad = len(_in(found, LIVE)), len(_in(found, UNFORTUNATE))
    if live:
        note(f"ostler: time is up and {_so_many(live, found)} have not ended; they go on")
    if bad:
        note(f"ostler: {_so_many(bad, found)} did not complete; see: ostler sweeps show {clean(found['name'])}")
    return exits.TIMED_OUT if live else exits.FAILED if bad else exits.DONE


def _until_ended(hub: "Hub", found: Document, deadline: float | None) -> Document:
    """One of those that run is waited for, then all are asked for: a sweep is one document, however many it has."""
    with follow.progress(len(found["jobs"])) as shown:
        while live := _in(found, LIVE):
            if shown:
                shown({job["job_id"]: {"state": STATES.get(job["status"], job["status"])} for job in found["jobs"]})
            look_s = follow.REFRESH_S if shown else follow.LOOK_S
            if deadline is not None:
                look_s = min(look_s, deadline - time.monotonic())
                if look_s <= 0:
                    break
            follow.look(hub, live[0]["job_id"], look_s)
            found = hub.sweep(found["name"])
    return found


def _in(sweep: Document, statuses: tuple[str, ...]) -> list[Document]:
    return [job for job in sweep["jobs"] if job["status"] in statuses]


def _so_many(number: int, sweep: Document) -> str:
    return f"{count(number, 'job')} of {clean(sweep['name'])}"


def _is_sure(question: str, yes: bool) -> bool:
    """Whoever can be asked is asked."""
    if yes or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return True
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    note("nothing was changed")
    return False


def _told(sweep: Document, what: str, as_json: bool) -> int:
    if as_json:
        show_json(sweep)
    else:
        print(what)
    return exits.DONE
