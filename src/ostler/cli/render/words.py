"""Amounts, times, needs and states in the words that people use."""

import re
import shlex
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from ostler.domain import states
from ostler.domain.quantities import AUTO

STATE_SIGNS = {
    states.PENDING: "○",
    states.ASSIGNED: "◐",
    "claimed": "◐",
    states.RUNNING: "●",
    states.ORPHANED: "◌",
    states.SUCCEEDED: "✓",
    "completed": "✓",
    states.FAILED: "✗",
    states.CANCELLED: "–",
    states.UNSCHEDULABLE: "!",
    "ready": "○",
    "busy": "●",
    "offline": "✗",
    "draining": "◐",
}
"""A sign for each state beside its word, so that colour is never the only difference."""

STATE_STYLES = {
    states.PENDING: "yellow",
    states.ASSIGNED: "cyan",
    "claimed": "cyan",
    states.RUNNING: "bold cyan",
    states.ORPHANED: "bold yellow",
    states.SUCCEEDED: "blue",
    "completed": "blue",
    states.FAILED: "bold red",
    states.CANCELLED: "bright_black",
    states.UNSCHEDULABLE: "bold red",
    "ready": "blue",
    "busy": "bold cyan",
    "offline": "bold red",
    "draining": "bold yellow",
}
"""Blue and cyan for good, yellow for waiting, red for bad: told apart by red-green blind eyes too."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_EXIT_CODE = re.compile(r"^exit code -?[0-9]+: ")
_ONLY_EXIT_CODE = re.compile(r"exit code -?[0-9]+( \(SIG[A-Z0-9]+\))?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_GENERATED_ID = re.compile(rf"[0-9a-hjkmnp-tv-z]{{18}}|{_DIGEST.pattern}")
_SHORT_ID = 12


def clean(value: Any) -> str:
    """Text from others without the characters that would steer a terminal."""
    return _CONTROL.sub("?", str(value))


def epoch(value: Any) -> float | None:
    """A time as the hub writes it (RFC 3339, or seconds) in seconds since the epoch."""
    if value is None or value == "":
        return None
    if isinstance(value, (int, float)):
        return float(value)
    try:
        parsed = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def span(seconds: float) -> str:
    """A length of time, in at most two units: '42s', '12m', '2h 5m', '3d 4h'."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m" if whole >= 600 or whole % 60 == 0 else f"{whole // 60}m {whole % 60}s"
    big, small, unit, rest = (whole // 3600, whole % 3600 // 60, "h", "m")
    if whole >= 86400:
        big, small, unit, rest = (whole // 86400, whole % 86400 // 3600, "d", "h")
    return f"{big}{unit} {small}{rest}" if small else f"{big}{unit}"


def since(value: Any, now: float | None = None) -> str:
    """How long ago, or nothing where there is no time."""
    at = epoch(value)
    return "" if at is None else span((time.time() if now is None else now) - at)


def moment(value: Any, now: float | None = None) -> str:
    """A point in time by this machine's clock, and how long ago that is."""
    at = epoch(value)
    if at is None:
        return ""
    return f"{stamp(at)} ({since(at, now)} ago)"


def stamp(value: Any) -> str:
    """A point in time by this machine's clock."""
    at = epoch(value)
    return "" if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


def took(started: Any, finished: Any, now: float | None = None) -> str:
    begin, end = epoch(started), epoch(finished)
    if begin is None:
        return ""
    return span((end if end is not None else time.time() if now is None else now) - begin)


def amount(value: float) -> str:
    return f"{value:.4g}" if value < 10_000 else f"{value:.0f}"


def gib(value: float) -> str:
    if 0 < value < 1:
        return f"{value * 1024:.0f} MiB"
    return f"{value / 1024:.4g} TiB" if value >= 1024 else f"{value:.4g} GiB"


def part_of(held: float, total: float) -> str:
    """'36 of 256 GiB': the unit once where both share it."""
    one, other = gib(held), gib(total)
    return f"{one.removesuffix(other[-4:])} of {other}" if one[-4:] == other[-4:] else f"{one} of {other}"


def count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def needs(spec: dict[str, Any]) -> str:
    """What a job asks for, on one line: '2×A100 · 8 cores · 16 GiB'."""
    parts = [_gpu_needs(spec)]
    if cores := spec.get("min_cpu_cores"):
        parts.append("1 core" if cores == 1 else f"{amount(cores)} cores")
    if memory := spec.get("min_memory_gb"):
        parts.append("auto memory" if memory == AUTO else gib(memory))
    if (nodes := spec.get("node_count", 1)) > 1:
        parts.append(count(nodes, "node"))
    parts += [clean(rule) for rule in spec.get("labels") or []]
    return " · ".join(part for part in parts if part) or "–"


def _gpu_needs(spec: dict[str, Any]) -> str:
    gpus, vram = spec.get("gpu_count", 0), spec.get("min_vram_gb", 0)
    kind = clean(spec.get("gpu_type") or "")
    kind = "" if kind.lower() == "auto" else kind
    backend = clean(spec.get("gpu_backend") or "")
    if vram == AUTO:
        return f"{gpus}×{kind or backend or 'GPU'}, auto VRAM" if gpus else "auto VRAM"
    if gpus:
        text = f"{gpus}×{kind or backend or 'GPU'}"
        return f"{text} with {gib(vram)}" if vram else text
    if share := spec.get("gpu_share", 0):
        text = f"{amount(share)} of a {kind or backend or ''} GPU".replace("  ", " ")
        return f"{text} with {gib(vram)}" if vram else text
    if vram:
        return f"{gib(vram)} VRAM ({kind or backend})" if kind or backend else f"{gib(vram)} VRAM"
    return backend


def command_line(argv: Iterable[Any]) -> str:
    return clean(shlex.join(str(part) for part in argv))


def titled(job: dict[str, Any]) -> str:
    """A job by its name where it has one, and its id."""
    return f"{clean(job['name'])} ({handle(job['id'])})" if job.get("name") else handle(job["id"])


def handle(ident: str) -> str:
    """What people type for this id: of a digest, its beginning."""
    return ident[:_SHORT_ID] if _DIGEST.fullmatch(ident) else ident


def error_of(job: dict[str, Any]) -> str:
    """What ended a job, in its own words; its exit code only where it had none."""
    return _EXIT_CODE.sub("", clean(job.get("reason") or ""))


def is_exit_code(reason: str) -> bool:
    """Whether a reason says no more than the exit code."""
    return _ONLY_EXIT_CODE.fullmatch(reason) is not None


def settings(values: dict[str, Any]) -> str:
    """'lr=0.01 width=128'."""
    return " ".join(f"{clean(name)}={setting(value)}" for name, value in values.items())


def setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else clean(value)


def figure(value: float) -> str:
    """A measured number in five digits at most: 0.91235, 12346, 1.2e-07."""
    short = f"{value:.5g}"
    return f"{value:.0f}" if "e+" in short and abs(value) < 1e9 else short


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Ids made by the hub cut to what tells them apart; ids that people chose stay whole."""
    whole = sorted(set(ids))
    short = {}
    for position, full in enumerate(whole):
        if not _GENERATED_ID.fullmatch(full):
            short[full] = full
            continue
        neighbours = whole[max(0, position - 1) : position] + whole[position + 1 : position + 2]
        length = max([_SHORT_ID, *(_common(full, other) + 1 for other in neighbours)])
        short[full] = full[:length]
    return short


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def counts_line(counts: dict[str, int], done: str = states.SUCCEEDED) -> str:
    """'12 of 100 succeeded · 3 running · 85 pending', states without tasks left out."""
    others = [f"{counts[state]} {state}" for state in STATE_SIGNS if state != done and counts.get(state)]
    return " · ".join([f"{counts.get(done, 0)} of {sum(counts.values())} {done}", *others])


def exit_code_words(code: int | None) -> str:
    """An exit code with the signal's name where a signal ended it."""
    if code is None:
        return ""
    number = -code if code < 0 else code - 128 if 128 < code <= 192 else 0
    if not number:
        return str(code)
    import signal

    try:
        return f"{128 + number} ({signal.Signals(number).name})"
    except ValueError:
        return str(code)
