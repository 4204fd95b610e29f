"""What can be watched: the lines of the feed, and the metrics, as a hub tells them."""

import ast
from collections.abc import Iterator
from pathlib import Path

from docs.generate.markdown import code, page, table

import ostler

SOURCE = Path(ostler.__file__).parent
KINDS = {
    "job": "a job came in, changed its state (of one task: with its `worker` and `attempt`), its priority, or what the manifest says of it",
    "task": "a task of an array or a gang changed its state; not when it was only sent ahead, before there is room for it",
    "worker": "a worker came, went, drains, rests after failures of its own",
    "service": "a service's health changed",
}
FEED = """`GET /v1/events` is a stream of server-sent events: one for every committed change, in order. `id` grows by one; a client that was
cut off sends the last one as `Last-Event-ID` (or `?after=`) and misses nothing. Users see what is about their own jobs, and the machines.
`GET /v1/jobs/{id}/events` has the same lines about one job, or one task of it, as a list: the first thousand after `after`, or the last `newest` of them.

    curl -N -H "Authorization: Bearer $OSTLER_TOKEN" http://127.0.0.1:7600/v1/events
"""
METRICS = """`GET /metrics`, for Prometheus, with a token of role `viewer` or more. Counters begin at 0 when the hub starts.
"""


def events() -> str:
    found = dict(_announced())
    rows = [(code(kind), KINDS[kind], ", ".join(code(name) for name in sorted(found[kind]))) for kind in sorted(found)]
    return page("Events", FEED, table(("event", "when", "fields beside `seq`, `at` and the subject"), rows))


def metrics(scraped: str) -> str:
    helps = dict(
        line.removeprefix("# HELP ").split(" ", 1) for line in scraped.splitlines() if line.startswith("# HELP ")
    )
    kinds = dict(
        line.removeprefix("# TYPE ").split(" ", 1) for line in scraped.splitlines() if line.startswith("# TYPE ")
    )
    rows = [(code(name), kinds[name], helps[name]) for name in sorted(helps) if name.startswith("ostler_")]
    return page("Metrics", METRICS, table(("metric", "type", "what it tells"), rows))


def _announced() -> Iterator[tuple[str, set[str]]]:
    """Every kind of line that the code announces, with the names that go with it."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if ".announce(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "announce" and len(node.args) >= 3:
                kind = node.args[1]
                assert isinstance(kind, ast.Constant), f"{path}:{node.lineno}: an event without a plain kind"
                found.setdefault(str(kind.value), set()).update(word.arg for word in node.keywords if word.arg)
    yield from found.items()
