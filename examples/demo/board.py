"""The two tables of the demo: the fleet while it works, and at the end the expectations beside the results."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

SYMBOLS = {"succeeded": "✔", "failed": "✘", "running": "▶", "unschedulable": "∅", "cancelled": "■", "orphaned": "?"}
Document = dict[str, Any]


@dataclass
class Row:
    """One comparison of the final table. `problem` is empty where the fleet did as expected."""

    name: str
    expected: str
    found: str
    problem: str = ""


def draw_board(documents: list[Document], workers: list[Document], spent_s: float, awaited: str) -> Table:
    """The live table: machines above, the tasks on each, and how far the jobs are."""
    title = f"the fleet after {spent_s:.1f} s" + (f", waiting for {awaited}" if awaited else "")
    table = Table(title=title, expand=True, title_justify="left")
    table.add_column("machine", no_wrap=True, min_width=9)
    table.add_column("status", no_wrap=True, min_width=7)
    for column in ("GPUs", "GiB of VRAM", "cores"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("running", ratio=1)
    names = {document["id"]: _title(document) for document in documents}
    for worker in workers:
        tasks = Counter(names.get(task["task_id"].partition(".")[0], "?") for task in worker["tasks"])
        gpus = worker["gpu_count"] - worker["free"]["gpus"]
        vram = worker["vram_gb"] - sum(device["vram_free_gb"] for device in worker["devices"])
        cores = worker["cpu_count"] - worker["free"]["cores"]
        table.add_row(
            worker["id"],
            worker["status"],
            f"{gpus}/{worker['gpu_count']}" if worker["gpu_count"] else "–",
            f"{vram:.0f}/{worker['vram_gb']:.0f}" if worker["gpu_count"] else "–",
            f"{cores:g}/{worker['cpu_count']:g}",
            ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in tasks.items()),
        )
    table.caption = count_states(documents)
    return table


def count_states(documents: Iterable[Document]) -> str:
    counts = Counter(document["state"] for document in documents)
    return "  ".join(f"{SYMBOLS.get(state, '·')} {count} {state}" for state, count in sorted(counts.items()))


def draw_verdict(sections: dict[str, list[Row]]) -> Table:
    """The final table, with one section for each kind of work."""
    table = Table(title="what was expected, and what happened", expand=True, title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("name", "expected", "found"):
        table.add_column(column, overflow="fold")
    table.add_column("", no_wrap=True)
    for kind, rows in sections.items():
        table.add_row(f"[bold]{kind}[/]")
        for row in rows:
            found = f"{row.found} — {row.problem}" if row.problem else row.found
            table.add_row(f"  {row.name}", row.expected, found, "✘" if row.problem else "✔")
        table.add_section()
    return table


def _title(document: Document) -> str:
    kind = document["spec"].get("type", "")
    return f"{document['name']} ({kind})" if kind in ("model", "service") else document["name"]
