"""What a replay found, on a terminal."""

from typing import Any

from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import heading, plain, quiet
from ostler.cli.render.words import count, span

Document = dict[str, Any]
MOST_USERS = 10
POLICIES = {
    "fifo": "fifo: the first in line blocks those behind it",
    "skip": "skip: what does not fit is skipped, and nothing is held",
    "ostler": "ostler: fair share between users, skipping, holds",
}


def jobs_screen(reports: list[Document]) -> list[Any]:
    parts: list[Any] = []
    for one in reports:
        never = f", {count(one['never'], 'job')} left out that no machine here could run" if one["never"] else ""
        held = f", {count(one['holds'], 'hold')}" if one["holds"] else ""
        told = f"{count(one['jobs'], 'job')} in {span(one['makespan_s'])}, GPUs {one['used']:.1%} used{held}{never}"
        parts += [heading(POLICIES[one["policy"]]), quiet(f"  {told}")]
    sizes, users = reports[-1]["by_size"], reports[-1]["by_user"]
    users = sorted(users, key=lambda group: (-group["jobs"], group["name"]))
    parts += [plain(""), _table("size", reports, [group["name"] for group in sizes], "by_size")]
    parts += [plain(""), _table("user", reports, [group["name"] for group in users[:MOST_USERS]], "by_user")]
    if len(users) > MOST_USERS:
        parts.append(quiet(f"{len(users) - MOST_USERS} more users; --json has all"))
    return parts


def openb_screen(outcome: dict[str, Any]) -> list[Any]:
    told = f"{count(outcome['pods'], 'pod')}, {outcome['failed']} of them not placed, by seed {outcome['seed']}"
    grid = Columns("GPUs asked for", "allocated", right=["GPUs asked for", "allocated"])
    for mark in (100, 130):
        grid.add(f"{mark} %", f"{outcome[f'alloc_at_{mark}']:.2f} %")
    took = f"half of the decisions took {outcome['decision_us_p50']:.0f} µs or less, 99 of 100"
    return [
        heading(f"{count(outcome['nodes'], 'machine')} with {count(outcome['gpus'], 'GPU')}"),
        quiet(f"  {told}"),
        grid,
        quiet(f"{took} {outcome['decision_us_p99']:.0f} µs or less"),
    ]


def _table(what: str, reports: list[Document], names: list[str], groups: str) -> Columns:
    columns = ["mean wait", "p50", "p95", "longest", "mean completion", "p95 completion"]
    grid = Columns(what, "policy", "jobs", *columns, right=["jobs", *columns], drop=("p95 completion", "p50"))
    for name in ["all", *names]:
        for place, one in enumerate(reports):
            found = {group["name"]: group for group in one[groups]} | {"all": one["all"]}
            if name in found:
                group = found[name]
                waits = [span(group["wait"][part]) for part in ("mean", "p50", "p95", "most")]
                completion = [span(group["completion"][part]) for part in ("mean", "p95")]
                grid.add(name if place == 0 else "", one["policy"], str(group["jobs"]), *waits, *completion)
    return grid
