"""Write what is made from the code: `python -m docs.generate`."""

from collections.abc import Iterator
from pathlib import Path

from docs.generate import commands, diagrams, errors, http, hub, settings, spec, states, watching

DOCS = Path(__file__).resolve().parent.parent


def pages() -> Iterator[tuple[str, str]]:
    """Every file below docs/, and what should be in it."""
    yield "reference/commands.md", commands.commands()
    yield "reference/settings.md", settings.settings()
    yield "reference/spec.md", spec.spec()
    yield "reference/states.md", states.job_states()
    yield "reference/events.md", watching.events()
    yield "errors.md", errors.errors()
    for name, drawing in diagrams.drawings():
        yield f"images/{name}.svg", drawing
    with hub.running() as asked:
        yield "reference/http.md", http.http(asked.json("/openapi.json"))
        yield "reference/metrics.md", watching.metrics(asked.text("/metrics"))


def main() -> None:
    for name, text in pages():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"reference: wrote docs/{name}")


if __name__ == "__main__":
    main()
