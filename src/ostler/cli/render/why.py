"""Why a job is where it is, and what would be if: on a terminal."""

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import heading, indented, plain, quiet, state_text
from ostler.cli.render.words import clean, count, epoch, handle, span

Document = dict[str, Any]
MOST_GROUPS = 20
MOST_CHANGES = 4
MOST_OTHERS = 8


def why_screen(
    name: str, why: Document, *, every_worker: bool = False, names: dict[str, str] | None = None
) -> RenderableType:
    """`names` are those of other jobs, by id."""
    parts: list[RenderableType] = [
        heading(name) + Text("  ") + state_text(why["state"]),
        Text(_sentence(why["summary"])),
    ]
    if workers := why.get("workers") or []:
        parts += [Text(), *_why_workers(workers, every_worker)]
    if held := why.get("holders") or []:
        parts += [Text(), heading("In its way"), indented(_holders(held, names or {}))]
    if why.get("change"):
        parts += [Text(), Text.assemble(("To start it now: ", "bold"), clean(why["change"]))]
        others = [clean(one["words"]) for one in (why.get("changes") or [])[1:MOST_CHANGES]]
        parts += [indented(quiet(f"or {one}")) for one in others]
    if why.get("estimate"):
        is_start = why["state"] == "pending"
        told = clean(why["estimate"])
        parts += [Text(), Text.assemble(("Expected to start: " if is_start else "Expected: ", "bold"), told)]
    if why.get("needs"):
        parts += [Text(), Text.assemble(("Its needs: ", "bold"), clean(why["needs"]))]
    if why.get("log_tail"):
        parts += [Text(), heading("The end of its log"), indented(Text(_cleaned(why["log_tail"])))]
    return Group(*parts)


def _cleaned(text: str) -> str:
    return "\n".join(clean(line) for line in text.splitlines()[-20:])


def _why_workers(workers: list[Document], every: bool) -> list[RenderableType]:
    """The nearest first, those that the same keeps from it in one row; every reason on a line of its own, wrapped
    rather than cut."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for worker in sorted(workers, key=lambda worker: (not worker["fits"], len(worker["reasons"]), worker["id"])):
        reasons = tuple(_without_name(reason, worker["id"]) for reason in worker["reasons"])
        key = (*reasons, worker["id"]) if every else reasons
        groups.setdefault(key, []).append(worker["id"])
    fits = {worker["id"]: worker["fits"] for worker in workers}
    grid = Columns("worker", "fits", "why not", cut={"worker": 10}, wrap="why not")
    shown = list(groups.items())[: None if every else MOST_GROUPS]
    for reasons, ids in shown:
        told = reasons[:-1] if every else reasons
        sign = Text("✓ yes", "blue") if fits[ids[0]] else Text("✗ no", "bold red")
        more = [f"and {count(len(ids) - 1, 'more worker')} like it"] if len(ids) > 1 else []
        grid.add(plain(ids[0]), sign, Text("\n".join([*told, *more])))
    left = sum(len(ids) for _, ids in list(groups.items())[len(shown) :])
    note: list[RenderableType] = (
        [quiet(f"and {left} more workers that are further off; --all lists them")] if left else []
    )
    return [grid, *note]


def _without_name(reason: str, worker: str) -> str:
    """The worker stands in its row already: 'needs 4 GPUs; box has 2' becomes 'needs 4 GPUs; has 2'."""
    return clean(reason).replace(f"; {worker} ", "; ").replace(f" of {worker} ", " ").removeprefix(f"{worker} ")


def _holders(held: list[Document], names: dict[str, str]) -> RenderableType:
    grid = Columns("worker", "held by", "has", "until", cut={"worker": 10, "held by": 12, "has": 14})
    for one in held:
        who = names.get(one["job"]) or handle(one["job"]) or "a process that should not be there"
        kind = {"model": "model ", "kept": "kept for ", "held": "held for "}.get(one.get("kind") or "", "")
        grid.add(plain(one["worker"]), plain(kind + who), plain(one.get("what") or ""), plain(_until(one.get("until"))))
    return grid


def _until(until: Document | None) -> str:
    if not until or until.get("likely_s") is None:
        return "not known"
    likely, high = until["likely_s"], until.get("high_s")
    worst = f", {span(high)} at worst" if high is not None and high > 1.5 * likely + 1 else ""
    return f"{span(likely)} more{worst}"


def _sentence(text: str) -> str:
    text = clean(text)
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?", "`")) else text + "."


def whatif_screen(
    title: str, changes: list[str], found: Document, names: dict[str, str], now: float | None = None
) -> RenderableType:
    at = time.time() if now is None else now
    parts: list[RenderableType] = [Text.assemble(("What if: ", "bold"), clean("; ".join(changes)))]
    if found["then"]:
        parts += [Text(), heading(title)]
        if found["then"].get("summary"):
            parts.append(Text(_sentence(found["then"]["summary"])))
        parts.append(indented(_sides(found["now"], found["then"], at)))
    earlier, later = found["earlier"], found["later"]
    looked = f"of {count(found['compared'], 'other job')} that could be compared"
    parts += [Text(), Text(f"{earlier['count']} would start earlier, {later['count']} later, {looked}")]
    moved = [*earlier["jobs"][:MOST_OTHERS], *later["jobs"][:MOST_OTHERS]]
    if moved:
        parts.append(indented(_moved(moved, names, at)))
    return Group(*parts)


def _sides(now: Document | None, then: Document, at: float) -> RenderableType:
    grid = Columns(*([""] + (["now"] if now else []) + ["then"]), cut={})
    for name, word in (("start", "starts"), ("end", "ends")):
        sides = [one for one in (now, then) if one is not None]
        grid.add(plain(word), *(plain(_side(one, name, at)) for one in sides))
    return grid


def _side(side: Document, name: str, at: float) -> str:
    if side.get("never"):
        return "never, as things are"
    if "later_than" in side:
        return f"later than {_in(side['later_than'], at)}" if name == "start" else "–"
    found = side.get(name)
    if not found:
        return "–"
    likely = f"in {_in(found['likely'], at)}" if found["likely"] else "later than can be foreseen"
    high = _in(found["high"], at) if found["high"] else "…"
    return f"{likely} ({_in(found['low'], at)} – {high})"


def _in(moment: str, at: float) -> str:
    return span((epoch(moment) or at) - at)


def _moved(moved: list[Document], names: dict[str, str], at: float) -> RenderableType:
    grid = Columns("job", "now", "then", "moves by", cut={"job": 16})
    for one in moved:
        by = one["by_s"]
        told = "" if by is None else f"{span(abs(by))} {'later' if by > 0 else 'earlier'}"
        who = names.get(one["id"]) or handle(one["id"])
        sides = [f"in {_in(one[side], at)}" if one[side] else "never" for side in ("now", "then")]
        grid.add(plain(who), *map(plain, sides), plain(told))
    return grid
