"""Pictures, drawn without a browser: readable on light and on dark pages, because each brings its own ground."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from ostler.domain import states

STYLE = """
  .ground { fill: #fdfdfb } .box { fill: #f1efe6; stroke: #6b6350; stroke-width: 1.5 } .end { fill: #e3ecdf; stroke: #4f6b47 }
  .bad { fill: #f3e2dc; stroke: #8a4b38 } .line { fill: none; stroke: #6b6350; stroke-width: 1.5 } .head { fill: #6b6350 }
  text { font: 14px system-ui, sans-serif; fill: #24211a } .small { font-size: 12px; fill: #5a5546 } .big { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #1d1c19 } .box { fill: #2c2a25; stroke: #a89f87 } .end { fill: #263024; stroke: #8fae85 }
    .bad { fill: #382723; stroke: #cf8e7a } .line { stroke: #a89f87 } .head { fill: #a89f87 }
    text { fill: #ece8dc } .small { fill: #b9b29d }
  }
"""


class Box(NamedTuple):
    x: float
    y: float
    title: str
    lines: Sequence[str] = ()
    kind: str = "box"
    width: float = 150
    height: float = 44

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


def drawings() -> Iterator[tuple[str, str]]:
    yield "states", job_states()
    yield "loop", loop()
    yield "rooms", rooms()
    yield "swap", swap()


# The states

PLACES: dict[str, tuple[float, float]] = {
    states.PENDING: (30, 150),
    states.ASSIGNED: (270, 150),
    states.RUNNING: (510, 150),
    states.ORPHANED: (390, 290),
    states.SUCCEEDED: (760, 60),
    states.FAILED: (760, 150),
    states.CANCELLED: (760, 240),
    states.UNSCHEDULABLE: (30, 290),
}
"""Where each state stands. One that is not named here cannot be drawn, and the test says so."""
MAIN = {
    (states.PENDING, states.ASSIGNED): "placed",
    (states.ASSIGNED, states.RUNNING): "accepted",
    (states.RUNNING, states.SUCCEEDED): "",
    (states.RUNNING, states.FAILED): "",
    (states.RUNNING, states.CANCELLED): "",
    (states.PENDING, states.UNSCHEDULABLE): "timeout",
    (states.ASSIGNED, states.ORPHANED): "silent",
    (states.RUNNING, states.ORPHANED): "",
    (states.ORPHANED, states.RUNNING): "back",
}
"""The moves that are drawn one by one; the others are told below, in a line for each kind."""


def job_states() -> str:
    boxes = {
        state: Box(x, y, state, kind="box" if state in states.LIVE else "end" if state == states.SUCCEEDED else "bad")
        for state, (x, y) in PLACES.items()
    }
    for old, new in MAIN:
        assert new in states.MOVES[old], f"there is no move from {old} to {new} to draw"
    parts = [_box(box) for box in boxes.values()]
    parts += [_straight(boxes[old], boxes[new], word) for (old, new), word in MAIN.items()]
    parts.append(
        _arc(boxes[states.RUNNING], boxes[states.PENDING], 60, "lost, handed back, retried, preempted, requeued")
    )
    return _picture(940, 410, parts + _others(374), "The states of a job and the moves between them")


def _others(y: float) -> list[str]:
    drawn = {*MAIN, (states.RUNNING, states.PENDING)}
    left = [(old, new) for old, moves in states.MOVES.items() for new in moves if (old, new) not in drawn]
    back = sorted({old for old, new in left if new == states.PENDING})
    lines = (
        f"not drawn: {len(left)} more moves, which the table lists: to pending from {', '.join(back)};",
        "and ends that are heard of before the worker's acceptance, or after a silence",
    )
    return [
        f'<text class="small" x="30" y="{y + 18 * number}">{escape(line)}</text>' for number, line in enumerate(lines)
    ]


# The loop, the rooms, the swap


def loop() -> str:
    steps = (
        Box(30, 90, "inbox", ("events: what has", "happened"), height=80),
        Box(215, 90, "step", ("pure: fleet, event,", "now → effects"), height=80),
        Box(400, 90, "settle", ("place what waits", "and now fits"), height=80),
        Box(585, 90, "commit", ("one transaction,", "on the disk"), "end", height=80),
        Box(770, 90, "perform", ("answers, orders to", "workers, the feed"), height=80),
    )
    parts = [_box(step) for step in steps]
    parts += [_straight(one, other) for one, other in pairwise(steps)]
    parts.append(_arc(steps[-1], steps[0], 210, "what arrives meanwhile is the next batch"))
    parts.append('<text class="small" x="30" y="40">nothing to the right of the commit happens before it</text>')
    return _picture(950, 260, parts, "One loop: inbox, step, settle, commit, perform")


def rooms() -> str:
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
        ("people", (("cli", "commands"), ("client", "Python"), ("dashboard", "the browser"))),
        (
            "programs",
            (("hub", "one writer"), ("worker", "one a machine"), ("gateway", "models"), ("sim", "virtual time")),
        ),
        ("decides", (("core", "pure: who, where, when, why"),)),
        ("adapters", (("ledger", "durable truth"), ("store", "bytes"), ("runtime", "processes"), ("wire", "messages"))),
        ("knows", (("domain", "what a job, a machine, an error is"),)),
    )
    parts: list[str] = []
    for number, (name, rooms_of) in enumerate(rows):
        y = 30 + number * 76
        parts.append(f'<text class="small" x="30" y="{y + 30}">{name}</text>')
        width = (720 - 12 * (len(rooms_of) - 1)) / len(rooms_of)
        for place, (title, told) in enumerate(rooms_of):
            kind = "end" if title in ("core", "domain") else "box"
            parts.append(_box(Box(130 + place * (width + 12), y, title, (told,), kind, width, 56)))
    parts.append('<text class="small" x="130" y="424">imports go down only; a test holds that line</text>')
    return _picture(880, 445, parts, "The rooms of the code, and which may import which")


def swap() -> str:
    boxes = (
        Box(30, 40, "a request for B", ("any OpenAI client",), height=76),
        Box(240, 40, "the relay", ("carries the bytes;", "a process of its own"), height=76),
        Box(450, 40, "the scheduler", ("pure, on the hub's loop:", "whose turn is it?"), width=190, height=76),
        Box(450, 190, "A stops", ("drained first: what it", "serves is answered"), "bad", 190, 76),
        Box(240, 190, "B loads", ("in the room that A left;", "the caller sees comments"), width=170, height=76),
        Box(30, 190, "B answers", ("streamed to the caller",), "end", height=76),
    )
    parts = [_box(box) for box in boxes]
    parts += [_straight(one, other) for one, other in pairwise(boxes)]
    parts.append(
        '<text class="small" x="30" y="300">a swap pays off when waiting costs more than the reload of A: the quantum</text>'
    )
    return _picture(680, 320, parts, "How a request for a model that is not loaded is served")


# Pieces


def _picture(width: int, height: int, parts: list[str], title: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
        '<path class="head" d="M0 0 10 5 0 10z"/></marker></defs>\n'
        f'<rect class="ground" width="{width}" height="{height}" rx="8"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def _box(box: Box) -> str:
    x, y = box.middle
    first = y + 5 - 9 * len(box.lines)
    texts = [f'<text class="big" x="{x:g}" y="{first:g}" text-anchor="middle">{escape(box.title)}</text>']
    for number, line in enumerate(box.lines, 1):
        texts.append(
            f'<text class="small" x="{x:g}" y="{first + 18 * number:g}" text-anchor="middle">{escape(line)}</text>'
        )
    frame = f'<rect class="box {box.kind}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="6"/>'
    return frame + "".join(texts)


def _straight(one: Box, other: Box, word: str = "") -> str:
    (x1, y1), (x2, y2) = _edge(one, other), _edge(other, one)
    if one.title == states.ORPHANED:
        x1, x2 = x1 + 26, x2 + 26  # beside the line that leads here
    line = f'<path class="line" d="M{x1:g} {y1:g} {x2:g} {y2:g}" marker-end="url(#head)"/>'
    if not word:
        return line
    sideways = 8 if abs(y2 - y1) > 20 else 0
    anchor = "start" if sideways else "middle"
    return line + (
        f'<text class="small" x="{(x1 + x2) / 2 + sideways:g}" y="{(y1 + y2) / 2 - (0 if sideways else 7):g}" '
        f'text-anchor="{anchor}">{escape(word)}</text>'
    )


def _arc(one: Box, other: Box, height: float, word: str) -> str:
    """From one to another, over or under those between them."""
    (x1, _), (x2, _) = one.middle, other.middle
    over = height < one.y
    y1, y2 = (one.y, other.y) if over else (one.y + one.height, other.y + other.height)
    line = f'<path class="line" d="M{x1:g} {y1:g}C{x1:g} {height:g} {x2:g} {height:g} {x2:g} {y2:g}" marker-end="url(#head)"/>'
    y = height + (y1 - height) / 4 - (8 if over else -22)
    return line + f'<text class="small" x="{(x1 + x2) / 2:g}" y="{y:g}" text-anchor="middle">{escape(word)}</text>'


def _edge(box: Box, towards: Box) -> tuple[float, float]:
    """Where a line from the middle of this box to the other leaves it."""
    (x, y), (to_x, to_y) = box.middle, towards.middle
    dx, dy = to_x - x, to_y - y
    scale = min(
        box.width / 2 / abs(dx) if dx else float("inf"),
        box.height / 2 / abs(dy) if dy else float("inf"),
    )
    return round(x + dx * scale, 1), round(y + dy * scale, 1)
