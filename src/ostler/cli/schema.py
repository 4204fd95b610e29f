"""`ostler schema`: what an editor needs to complete and check the manifest and ostler.toml."""

from typing import Annotated, Any

import typer

from ostler.cli import exits
from ostler.cli.render.terminal import show_json
from ostler.domain.errors import BadInput

MANIFEST, CONFIG, SPEC = "manifest", "config", "spec"
KINDS = (MANIFEST, CONFIG, SPEC)


def schema(
    kind: Annotated[str, typer.Argument(help="manifest, config (ostler.toml) or spec (of one job).", metavar="KIND")],
) -> int:
    """Print the JSON Schema of a file, for editors."""
    show_json(made(kind))
    return exits.DONE


def made(kind: str) -> dict[str, Any]:
    if kind == MANIFEST:
        from ostler.manifest import schema as manifest

        return manifest.schema()
    if kind == CONFIG:
        return _config()
    if kind == SPEC:
        return _spec()
    raise BadInput(f"KIND: {kind!r} is not one of {', '.join(KINDS)}", [("kind", "unknown")])


def _config() -> dict[str, Any]:
    from ostler.hub import schema as hub
    from ostler.worker import accounts

    found = hub.schema()
    user = {"type": "string", "minLength": 1}
    worker: dict[str, Any] = {
        "run_as": {"anyOf": [user, {"type": "object", "additionalProperties": user}]},
        "tasks_dir": {"type": "string", "pattern": "^(/.*)?$"},
        "memory_limit": {"anyOf": [{"const": 0}, {"type": "number", "minimum": 1, "maximum": 100}]},
    }
    known = {name: worker.get(name, {}) for name in accounts.KEYS}
    found["properties"]["worker"] |= {"properties": known, "additionalProperties": False}
    return found


def _spec() -> dict[str, Any]:
    import msgspec

    from ostler.domain.job import JobSpec

    return msgspec.json.schema(JobSpec)
