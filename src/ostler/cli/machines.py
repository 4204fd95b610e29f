"""The machines of the fleet, and the whole of it on one screen."""

from typing import TYPE_CHECKING, Any

from ostler.cli import exits
from ostler.cli.options import Access, Json, WorkerId
from ostler.cli.render.terminal import show as show_parts
from ostler.cli.render.terminal import show_json
from ostler.cli.session import connect
from ostler.domain import states
from ostler.domain.errors import OstlerError

if TYPE_CHECKING:
    from ostler.client.http import Hub

Document = dict[str, Any]
MOST_JOBS = 1000


def workers(access: Access, json: Json = False) -> int:
    """List the workers: what each has, and what is free."""
    with connect(access) as hub:
        found = hub.workers()
    if json:
        show_json({"workers": found, "next": None})
        return exits.DONE
    from ostler.cli.render.machines import worker_table

    show_parts(worker_table(found))
    return exits.DONE


def show(worker: WorkerId, access: Access, json: Json = False) -> int:
    """Show a worker: its hardware, its labels, and what runs there."""
    with connect(access) as hub:
        document = hub.worker(worker)
        if json:
            show_json(document)
            return exits.DONE
        names = _names(hub)
    from ostler.cli.render.machines import worker_screen

    show_parts(worker_screen(document, names))
    return exits.DONE


def drain(worker: WorkerId, access: Access, json: Json = False) -> int:
    """Close a worker to new work; what runs there goes on."""
    with connect(access) as hub:
        return _told(hub.drain(worker), "takes nothing new; what runs there goes on", json)


def resume(worker: WorkerId, access: Access, json: Json = False) -> int:
    """Open a drained worker again."""
    with connect(access) as hub:
        return _told(hub.resume(worker), "takes work again", json)


def _told(document: Document, what: str, as_json: bool) -> int:
    if as_json:
        show_json(document)
    else:
        print(f"{document['id']} {what}")
    return exits.DONE


def status(access: Access, json: Json = False) -> int:
    """The whole fleet on one screen."""
    with connect(access) as hub:
        totals, machines, models = hub.status(), hub.workers(), hub.models()
        oldest = _oldest_waiting(hub) if totals["jobs"].get(states.PENDING) else None
        if json:
            from ostler.cli.render.machines import alarms

            told = {"machines": machines, "models": models, "alarms": alarms(totals, machines, models)}
            show_json({**totals, **told, "oldest_pending": oldest})
            return exits.DONE
        names, url = _names(hub), hub.address
    from ostler.cli.render.machines import status_screen

    show_parts(status_screen(url, totals, machines, names, oldest, models=models))
    return exits.DONE


def _names(hub: "Hub") -> dict[str, str]:
    """Names of the jobs that hold something, by id: workers know ids only."""
    found = hub.all_jobs(state=states.PLACED, limit=MOST_JOBS)
    return {job["id"]: job["name"] for job in found if job.get("name")}


def _oldest_waiting(hub: "Hub") -> Document | None:
    """The job that has waited longest, and why. Of a very long queue: of its first part."""
    places = hub.queue(MOST_JOBS)["queue"]
    if not places:
        return None
    name = min(places, key=lambda place: place["waiting_since"])["id"]
    try:
        return {**hub.job(name), "why": hub.why(name, brief=True)}
    except OstlerError:  # it has begun, or ended, meanwhile
        return None
