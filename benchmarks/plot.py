"""A line over a logarithmic axis as SVG: enough to see whether something grows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 72, 44, 64, 56
STYLE = "font-family:system-ui,sans-serif;font-size:13px;fill:#24292f"
PALE = "#d8dee4"
COLOURS = ("#0550ae", "#bc4c00", "#1a7f37")


@dataclass
class Line:
    name: str
    xs: Sequence[float]
    medians: Sequence[float]
    spreads: Sequence[tuple[float, float]]


def draw(title: str, x_name: str, y_name: str, lines: Sequence[Line]) -> str:
    """The vertical axis begins at zero, so that a flat line is a flat cost."""
    step, top = _steps(max(most for line in lines for _, most in line.spreads))
    first, last = (math.log10(edge(line.xs[at] for line in lines)) for edge, at in ((min, 0), (max, -1)))

    def x_at(value: float) -> float:
        return LEFT + (math.log10(value) - first) / (last - first or 1.0) * (WIDTH - LEFT - RIGHT)

    def y_at(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 22, title, "start", "font-weight:600;font-size:15px"),
        _text(WIDTH / 2, HEIGHT - 12, x_name),
        _text(LEFT, TOP - 12, y_name, "start", "fill:#57606a"),
    ]
    for number in range(round(top / step) + 1):
        y = y_at(number * step)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{PALE}"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{number * step:,.0f}", "end"))
    for power in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1):
        x = x_at(10.0**power)
        parts.append(f'<path d="M{x:.1f} {HEIGHT - BOTTOM}v5" stroke="#57606a"/>')
        parts.append(_text(x, HEIGHT - BOTTOM + 20, f"{10**power:,}"))
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = [(x_at(x), y_at(y)) for x, y in zip(line.xs, line.medians, strict=True)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), (least, most) in zip(points, line.spreads, strict=True):
            parts.append(f'<path d="M{x:.1f} {y_at(least):.1f}V{y_at(most):.1f}" stroke="{colour}"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        parts.append(_text(WIDTH - RIGHT, TOP - 28 + 16 * number, line.name, "end", f"fill:{colour}"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _steps(most: float) -> tuple[float, float]:
    """Between the lines of the grid, and where it ends: 1, 2 or 5 times a power of ten, about five of them."""
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough)
    return step, step * math.ceil(most / step)


def _text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    style = f"{STYLE};{more}" if more else STYLE
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="{style}">{escape(words)}</text>'
