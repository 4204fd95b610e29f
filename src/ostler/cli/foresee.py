"""Why a job is where it is, and what would be if."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler.cli import exits
from ostler.cli.options import Access, JobId, Json
from ostler.cli.render.terminal import show as show_parts
from ostler.cli.render.terminal import show_json
from ostler.cli.render.words import count, needs, titled
from ostler.cli.session import connect
from ostler.cli.spec import SpecOptions, spec_fields
from ostler.domain.errors import BadInput, OstlerError
from ostler.domain.quantities import parse_duration

if TYPE_CHECKING:
    from ostler.client.http import Hub

Document = dict[str, Any]
FLEET = "What of the fleet"
MOST_NAMES = 16
LOOK = "2s"


def why(
    job: JobId,
    access: Access,
    every: Annotated[bool, typer.Option("--all", help="List every worker, however many there are.")] = False,
    json: Json = False,
) -> int:
    """Say why a job waits and until when, why it runs where it does, or what ended it."""
    with connect(access) as hub:
        found = hub.why(job)
        if json:
            show_json(found)
            return exits.DONE
        document = hub.job(job)
        names = _names(hub, [holder["job"] for holder in found.get("holders") or []])
    from ostler.cli.render.why import why_screen

    show_parts(why_screen(titled(document), found, every_worker=every, names=names))
    return exits.DONE


def _option(name: str, told: str, metavar: str) -> Any:
    return typer.Option(name, help=told, rich_help_panel=FLEET, metavar=metavar, show_default=False)


@dataclasses.dataclass(frozen=True)
class FleetOptions:
    add_worker: Annotated[
        list[str] | None,
        _option(
            "--add-worker", "A worker more: like this one (box, 3*box), or an offer's file. Repeatable.", "LIKE|FILE"
        ),
    ] = None
    remove_worker: Annotated[list[str] | None, _option("--remove-worker", "Without this worker. Repeatable.", "ID")] = (
        None
    )
    drain: Annotated[list[str] | None, _option("--drain", "With this worker closed to new work. Repeatable.", "ID")] = (
        None
    )
    resume: Annotated[list[str] | None, _option("--resume", "With this drained worker open. Repeatable.", "ID")] = None
    hold_after: Annotated[
        str | None, _option("--hold-after", "With machines held for what has waited so long: 5m; never.", "TIME")
    ] = None
    head_blocks: Annotated[
        bool,
        typer.Option("--head-blocks", help="With the first in line keeping all others back.", rich_help_panel=FLEET),
    ] = False


def whatif(
    spec: SpecOptions,
    fleet: FleetOptions,
    access: Access,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="ID", help="A job that waits; options say what it would need instead."),
    ] = None,
    look: Annotated[str, typer.Option("--look", metavar="TIME", help="Look ahead for so long: 20s at most.")] = LOOK,
    json: Json = False,
) -> int:
    """Say what would start when, if something were otherwise. Nothing is changed.

    ostler whatif --gpus 2 --vram 40g

    ostler whatif --job mlp --gpus 1

    ostler whatif --add-worker 2*box --drain old
    """
    question = question_of(spec_fields(spec), fleet, job, parse_duration(look, "--look"))
    with connect(access) as hub:
        found = hub.whatif(question)
        if json:
            show_json(found)
            return exits.DONE
        title = titled(hub.job(job)) if job is not None else "the job"
        moved = [one["id"] for side in ("earlier", "later") for one in found[side]["jobs"][: MOST_NAMES // 2]]
        names = _names(hub, moved)
    from ostler.cli.render.why import whatif_screen

    show_parts(whatif_screen(title, told(question), found, names))
    return exits.DONE


def question_of(fields: Document, fleet: FleetOptions, job: str | None, look_s: float) -> Document:
    question: Document = {"within_s": look_s}
    if job is not None:
        question |= {"job_id": job, "changes": fields}
    elif fields:
        question["spec"] = fields
    for name, value in (("remove_workers", fleet.remove_worker), ("drain", fleet.drain), ("resume", fleet.resume)):
        if value:
            question[name] = value
    if fleet.add_worker:
        question["add_workers"] = [_added(text) for text in fleet.add_worker]
    policy: Document = {"head_blocks": True} if fleet.head_blocks else {}
    if fleet.hold_after == "never":
        policy["holds"] = False
    elif fleet.hold_after is not None:
        policy["hold_after_s"] = parse_duration(fleet.hold_after, "--hold-after")
    return question | ({"policy": policy} if policy else {})


def _added(text: str) -> Document:
    number, star, like = text.rpartition("*")
    if star and not number.isdecimal():
        raise BadInput(f"--add-worker: {text!r}: write it like 3*box", [("add_workers", "not a number")])
    many = {"count": int(number)} if star else {}
    if like.endswith(".toml"):
        import msgspec

        from ostler.runtime.probe.offer_file import load_offer

        return {"capabilities": msgspec.to_builtins(load_offer(Path(like))), **many}
    return {"like": like, **many}


def told(question: Document) -> list[str]:
    """The change in words."""
    found = []
    if question.get("spec"):
        found.append(f"a job that needs {needs(question['spec']).replace('–', 'nothing in particular')}")
    if question.get("changes"):
        changes = ", ".join(f"{name} = {value}" for name, value in question["changes"].items())
        found.append(f"{question['job_id']} with {changes}")
    for group in question.get("add_workers") or []:
        number = group.get("count", 1)
        what = f"like {group['like']}" if group.get("like") else "as described"
        found.append(f"{count(number, 'worker')} more {what}")
    for name, words in (("remove_workers", "without {}"), ("drain", "{} drained"), ("resume", "{} resumed")):
        found += [words.format(worker) for worker in question.get(name) or []]
    policy = question.get("policy") or {}
    if "hold_after_s" in policy:
        found.append(f"machines held after {policy['hold_after_s']:g} s")
    found += ["no machine is ever held"] * (policy.get("holds") is False)
    found += ["the first in line keeps all others back"] * bool(policy.get("head_blocks"))
    return found


def _names(hub: "Hub", ids: list[str]) -> dict[str, str]:
    """Of the first of these jobs, as far as they can be seen."""
    names = {}
    for job_id in list(dict.fromkeys(ids))[:MOST_NAMES]:
        try:
            names[job_id] = hub.job(job_id)["name"]
        except OstlerError:
            continue
    return {job_id: name for job_id, name in names.items() if name}
