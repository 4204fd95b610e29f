"""What was found, as Markdown that is read on a terminal too."""

import datetime
import statistics
from collections.abc import Callable, Collection, Iterable

from benchmarks.peers.runs import COMPILED, OSTLER, Found, Series
from benchmarks.process_fleet import machine

UNPLACED = "actors"
"""Calls that go to a process which the caller names: nobody decides where they run, one after the other."""
NO_CALLS = "no process"
"""What HyperQueue does instead: nothing is called, so it is shown and not compared."""
Figure = tuple[str, Series]


def page(found: list[Found], rounds: int, load: float = 0.0) -> str:
    """The first is the floor, then come ours. `load` is what the machine had to do before this began."""
    bare, *rest = found
    ours = [one for one in rest if one.system in (OSTLER, COMPILED)]
    peers = [one for one in rest if one not in ours]
    parts = [
        "# The peers, measured",
        f"Made by `make bench-peers` on {datetime.date.today()}: {machine()}; load average before: {load:.1f}. "
        f"Rounds in turns: {rounds}. Medians, with the least and the most; everything on loopback, two slots each. "
        "Ostler commits every submit and every end to the disk before it answers; no other one here does, save for "
        "Slurm's state that is written later.",
        rates(found),
        "## Beside the fastest",
        "The ratio is taken within each round, then its median. W3 may take as long as the fastest peer and two "
        "commits on this disk. HyperQueue's W2 calls nothing, and is not compared.",
        *(beside(bare, one, peers) for one in ours),
        "## Jobs that cannot run, and one that can behind them (W4)",
        queues(rest),
        "## How each is set up",
        setups(found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def rates(found: list[Found]) -> str:
    heads = ["", "W1: processes `true`, per s", "W2: calls that do nothing, per s", "W3: one alone, p50 ms"]
    rows = [[one.system.name, *(_cell(one, *what) for what in COLUMNS)] for one in found]
    return table(heads, rows)


COLUMNS: list[tuple[str, str, Callable[[float], str]]] = [
    ("W1", "per_s", "{:,.0f}".format),
    ("W2", "per_s", "{:,.0f}".format),
    ("W3", "p50_ms", "{:.1f}".format),
]


def _cell(one: Found, work: str, key: str, shown: Callable[[float], str]) -> str:
    ways = one.ways(work, key)
    if not ways:
        return one.failed
    named = len(ways) > 1 or work == "W2"
    return "; ".join(
        f"{way + ' ' if named else ''}{shown(series.median)} ({shown(series.least)}..{shown(series.most)})"
        for way, series in ways.items()
    )


def beside(bare: Found, ours: Found, peers: list[Found]) -> str:
    rows = [
        _ratio("W1", "W1", ours, _figures(peers, "W1"), 1.5),
        _ratio("W1, the floor", "W1", ours, _floor(bare, ours), 0.55),
        _ratio("W2, calls that are placed", "W2", ours, _figures(peers, "W2", {NO_CALLS, UNPLACED}), 1.5),
        _ratio("W2, calls of an actor too", "W2", ours, _figures(peers, "W2", {NO_CALLS}), 1.5),
        _latency(ours, [(one.system.name, way) for one in peers for way in one.ways("W3", "p50_ms").values()]),
    ]
    return table(["", ours.system.name, "the fastest", "ratio", "bar", ""], [row for row in rows if row])


def _floor(bare: Found, ours: Found) -> list[Figure]:
    """As it was right before each of our rounds, where that is known."""
    return [(bare.system.name, ours.bare_per_s)] if ours.bare_per_s.by_round else _figures([bare], "W1")


def _figures(found: Iterable[Found], work: str, without: Collection[str] = ()) -> list[Figure]:
    return [
        (f"{one.system.name} {way}".strip(), series)
        for one in found
        for way, series in one.ways(work, "per_s").items()
        if way not in without
    ]


def _ratio(name: str, work: str, ours: Found, others: list[Figure], bar: float) -> list[str]:
    own = next(iter(ours.ways(work, "per_s").values()), None)
    if own is None or not others:
        return []
    label, fastest = max(others, key=lambda one: one[1].median)
    ratios = []
    for number, rate in own.by_round.items():
        rivals = [series.by_round[number] for _, series in others if number in series.by_round]
        if rivals:
            ratios.append(rate / max(rivals))
    if not ratios:
        return []
    found = statistics.median(ratios)
    shown = f"{found:.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
    verdict = "met" if found >= bar else "missed"
    return [name, f"{own.median:,.0f}/s", f"{label} {fastest.median:,.0f}/s", shown, f"at least {bar}", verdict]


def _latency(ours: Found, others: list[Figure]) -> list[str]:
    own = next(iter(ours.ways("W3", "p50_ms").values()), None)
    if own is None or not others or not ours.two_commits_ms.by_round:
        return []
    label, fastest = min(others, key=lambda one: one[1].median)
    commits = ours.two_commits_ms.median
    allowed = fastest.median + commits
    bar = f"at most {allowed:.1f} ms: two commits took {commits:.1f} ms"
    verdict = "met" if own.median <= allowed else "missed"
    shown = f"{own.median / allowed:.2f} of what it may take"
    return ["W3", f"{own.median:.1f} ms", f"{label} {fastest.median:.1f} ms", shown, bar, verdict]


def queues(found: list[Found]) -> str:
    heads = ["", "jobs", "queued per s", "memory grew by", "one job before", "one job behind them"]
    rows = []
    for one in found:
        for way, rate in one.ways("W4", "per_s").items():
            rest = {key: one.ways("W4", key).get(way) for key in ("grown_mb", "before_ms", "behind_ms")}
            grown, before, behind = (series.median if series else None for series in rest.values())
            rows.append(
                [
                    f"{one.system.name}, {way}",
                    f"{one.counts['W4']:,}",
                    f"{rate.median:,.0f}",
                    "" if grown is None else f"{grown:,.0f} MB",
                    "" if before is None else f"{before:.1f} ms",
                    "" if before is None or behind is None else f"{behind:.1f} ms ({behind / before:.2f} times)",
                ]
            )
    return table(heads, rows)


def setups(found: list[Found]) -> str:
    return table(
        ["", "version", "set up"],
        [[one.system.name, one.version, "; ".join(part for part in (one.setup, one.failed) if part)] for one in found],
    )


def table(heads: list[str], rows: list[list[str]]) -> str:
    """With the columns one below the other, as far as a terminal is wide."""
    if not rows:
        return ""
    widths = [max(len(row[place]) for row in [heads, *rows]) for place in range(len(heads))]
    widths = [min(width, 60) for width in widths]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
