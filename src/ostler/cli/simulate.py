"""The real scheduler on a trace: what would have become of it, without a hub or a machine."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ostler.cli import exits
from ostler.cli.options import Json
from ostler.cli.render.terminal import note, show_json
from ostler.cli.render.terminal import show as show_parts
from ostler.domain.errors import BadInput
from ostler.domain.scheduling import NEVER, parse_hold_after

FLEET, DRAWN, OPENB = "The machines", "Without a trace", "For --format openb"


def _option(name: str, told: str, panel: str, **more: Any) -> Any:
    return typer.Option(name, help=told, rich_help_panel=panel, **more)


@dataclasses.dataclass(frozen=True)
class Machines:
    workers: Annotated[int, _option("--workers", "How many machines there are.", FLEET, metavar="N", min=1)] = 8
    gpus: Annotated[int, _option("--gpus", "GPUs of each.", FLEET, metavar="N", min=0)] = 8
    hold_after: Annotated[
        str, _option("--hold-after", f"How long a job waits for a hold: 90s, 10m, or {NEVER}.", FLEET, metavar="TIME")
    ] = "10m"


@dataclasses.dataclass(frozen=True)
class Drawn:
    jobs: Annotated[int, _option("--jobs", "Draw so many jobs.", DRAWN, metavar="N", min=1)] = 5000
    seed: Annotated[int, _option("--seed", "The seed they are drawn by.", DRAWN, metavar="N")] = 0
    load: Annotated[
        float, _option("--load", "How much they ask for, of what the machines can do.", DRAWN, metavar="PART")
    ] = 0.95
    save: Annotated[
        Path | None, _option("--save", "Write the drawn trace to this file.", DRAWN, metavar="FILE", dir_okay=False)
    ] = None


@dataclasses.dataclass(frozen=True)
class Lists:
    nodes: Annotated[
        Path | None, _option("--nodes", "The machines: a CSV file.", OPENB, metavar="FILE", dir_okay=False)
    ] = None
    pods: Annotated[
        Path | None, _option("--pods", "What asks for them: a CSV file.", OPENB, metavar="FILE", dir_okay=False)
    ] = None


def simulate(
    machines: Machines,
    drawn: Drawn,
    lists: Lists,
    trace: Annotated[
        Path | None, typer.Argument(metavar="[TRACE]", help="A CSV file: submit, duration, gpus, user, ...")
    ] = None,
    format: Annotated[
        str, typer.Option("--format", help="What is replayed: jobs or openb.", metavar="FORMAT")
    ] = "jobs",
    json: Json = False,
) -> int:
    """Replay a trace with the real scheduler.

    Jobs, beside plain FIFO and FIFO that skips what does not fit; or (openb) how much of a cluster is allocated when
    so much has been asked for."""
    found = FORMATS.get(format)
    if found is None:
        raise BadInput(f"--format: {format!r} is not one of {', '.join(FORMATS)}", [("format", "is unknown")])
    return found(trace, machines, drawn, lists, json)


def _jobs(trace: Path | None, machines: Machines, drawn: Drawn, lists: Lists, json: bool) -> int:
    from ostler.sim import jobs, replay

    hold_after_s = parse_hold_after(machines.hold_after, "--hold-after")
    total = machines.workers * machines.gpus
    if trace is not None:
        found = jobs.read(trace)
    elif not machines.gpus:
        raise BadInput("--gpus: jobs are drawn for machines with GPUs; name a trace", [("gpus", "is 0")])
    elif not 0 < drawn.load < math.inf:
        raise BadInput(f"--load: {drawn.load:g} must be above 0", [("load", "must be above 0")])
    else:
        found = jobs.drawn(drawn.seed, drawn.jobs, total, load=drawn.load, largest=machines.gpus)
        if drawn.save is not None:
            jobs.write(found, drawn.save)
            note(f"wrote {drawn.save}")
    offers = replay.machines(machines.workers, machines.gpus)
    import msgspec

    reports = [replay.report(one, total) for one in replay.compared(found, offers, hold_after_s)]
    told = msgspec.to_builtins(reports)
    if json:
        show_json({"trace": str(trace or ""), "policies": told})
        return exits.DONE
    from ostler.cli.render.simulate import jobs_screen

    show_parts(*jobs_screen(told))
    return exits.DONE


def _openb(trace: Path | None, machines: Machines, drawn: Drawn, lists: Lists, json: bool) -> int:
    if lists.nodes is None or lists.pods is None:
        missing = "--nodes" if lists.nodes is None else "--pods"
        raise BadInput(f"{missing}: --format openb needs two CSV files, --nodes and --pods", [(missing, "is missing")])
    from ostler.sim import openb

    nodes, pods = openb.read_nodes(lists.nodes), openb.read_pods(lists.pods)
    outcome = openb.run(nodes, pods, drawn.seed, lambda done, of: note(f"{done} of {of} pods"))
    import msgspec

    found = msgspec.to_builtins(outcome)
    if json:
        show_json(found)
        return exits.DONE
    from ostler.cli.render.simulate import openb_screen

    show_parts(*openb_screen(found))
    return exits.DONE


FORMATS: dict[str, Callable[[Path | None, Machines, Drawn, Lists, bool], int]] = {"jobs": _jobs, "openb": _openb}
