"""The gateway's models on a terminal."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import plain, quiet
from ostler.cli.render.words import clean, gib, span

Document = dict[str, Any]
NOTHING = "no models; [models] in ostler.toml says what there is to serve"
STATES = {
    "ready": ("●", "bold cyan"),
    "loading": ("◐", "cyan"),
    "found": ("◐", "cyan"),
    "draining": ("◐", "bold yellow"),
    "unreachable": ("◌", "bold yellow"),
    "stopping": ("◐", "yellow"),
    "stopped": ("○", "bright_black"),
    "backing_off": ("✗", "bold red"),
}
"""A sign for each state beside its word, so that colour is never the only difference."""


def model_table(models: list[Document]) -> RenderableType:
    if not models:
        return quiet(NOTHING)
    error = ["error"] if any(model["error"] for model in models) else []
    columns = ["model", "state", "worker", "serving", "waiting", "served", "idle", "load", "vram", *error]
    numbers = ("serving", "waiting", "served", "idle", "load", "vram")
    least, drop = {"model": 12, "worker": 8, "error": 16}, ("vram", "served", "load", "error", "worker")
    grid = Columns(*columns, cut=least, drop=drop, right=numbers)
    for model in models:
        grid.add(
            plain(model["name"]),
            state_of(model),
            plain(", ".join(dict.fromkeys(one["worker"] for one in model["instances"] if one["worker"]))),
            _count(model["in_flight"]),
            _count(model["queued"]),
            _count(model["served"]),
            "" if model["idle_s"] is None or model["in_flight"] else span(model["idle_s"]),
            took_text(model["load_s"]),
            vram_text(model),
            *(first_line(model["error"] or "") for _ in error),
        )
    return grid


def state_of(model: Document) -> Text:
    state = model["state"]
    sign, style = STATES.get(state, ("?", ""))
    several = f" ×{len(model['instances'])}" if len(model["instances"]) > 1 else ""
    text = Text(f"{sign} {clean(state).replace('_', ' ')}{several}", style, no_wrap=True)
    return text.append(" pinned", "default") if model["pinned"] else text


def model_line(model: Document) -> str:
    """What has become of one, in one line: 'qwen is loading on box'."""
    where = f" on {clean(model['worker'])}" if model["worker"] else ""
    pinned = ", pinned" if model["pinned"] else ""
    failed = model["error"] and model["state"] != "ready"
    error = f": {clean(model['error'])}" if failed else ""
    return f"{clean(model['name'])} is {clean(model['state']).replace('_', ' ')}{where}{pinned}{error}"


def vram_text(model: Document) -> str:
    """What its next process is given: '9 GiB', '11 GiB learnt', '2 GPUs'."""
    gpus = f"{model['gpus']} GPU{'s' if model['gpus'] > 1 else ''}" if model["gpus"] else ""
    size = gib(model["vram_gb"]) if model["vram_gb"] else gpus
    return f"{size} learnt" if "vram" in model["learnt"] and model["vram_gb"] else size


def took_text(seconds: float | None) -> str:
    """How long a load took: '0.42s', '12s', '2m 5s'."""
    if seconds is None:
        return ""
    return f"{seconds:.2g}s" if seconds < 10 else span(seconds)


def first_line(text: str) -> str:
    """Of an error, without the log that may follow it."""
    return clean(text.partition("\n")[0])


def _count(number: int) -> Text:
    return Text(str(number)) if number else quiet("–")
