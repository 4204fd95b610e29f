"""The HTTP API, from the description that the hub gives of itself."""

from collections.abc import Iterator
from typing import Any

from docs.generate.markdown import code, page, table

INTRO = """The hub describes itself at `GET /openapi.json` (OpenAPI 3.1); this page is made from that. Send
`Authorization: Bearer TOKEN`. Errors are problem documents (RFC 9457) whose `type` leads to [what to do](../errors.md). Lists are
paged: `limit`, and `cursor` as `next` told it. `Idempotency-Key` with a submit makes it safe to repeat.

    curl -H "Authorization: Bearer $OSTLER_TOKEN" http://127.0.0.1:7600/v1/jobs
"""
METHODS = ("get", "head", "post", "put", "delete")
GROUPS = {
    "jobs": "Jobs",
    "queue": "Jobs",
    "timeline": "Jobs",
    "whatif": "Jobs",
    "workers": "The fleet",
    "status": "The fleet",
    "events": "The fleet",
    "hubs": "The fleet",
    "me": "The fleet",
    "health": "The fleet",
    "tokens": "Tokens and machines",
    "enrol": "Tokens and machines",
    "leave": "Tokens and machines",
    "job": "Machines without a connection",
    "manifest": "Training",
    "sweeps": "Training",
    "models": "Models",
    "model": "Bytes",
    "artifacts": "Bytes",
    "snapshots": "Bytes",
    "checkpoints": "Bytes",
    "tasks": "Bytes",
    "audit": "Who did what, and secrets",
    "secrets": "Who did what, and secrets",
}


def http(description: dict[str, Any]) -> str:
    groups: dict[str, list[tuple[str, ...]]] = {name: [] for name in dict.fromkeys(GROUPS.values())}
    for path, operations in description["paths"].items():
        rows = groups.setdefault(_group(path), [])
        rows += _rows(path, operations)
    heads = ("request", "does", "query", "body", "answers", "roles")
    parts = [f"## {name}\n\n{table(heads, rows)}" for name, rows in groups.items() if rows]
    return page("HTTP API", INTRO, *parts)


def _group(path: str) -> str:
    words = path.strip("/").split("/")
    known = GROUPS.get(words[1]) if words[0] == "v1" and len(words) > 1 else None
    return known or "The others"


def _rows(path: str, operations: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    if len({operation["summary"] for operation in operations.values()}) == 1 and len(operations) > len(METHODS) - 1:
        yield _row("any method", path, next(iter(operations.values())))
        return
    for method in METHODS:
        if method in operations:
            yield _row(method.upper(), path, operations[method])


def _row(method: str, path: str, operation: dict[str, Any]) -> tuple[str, ...]:
    query = [code(one["name"]) for one in operation.get("parameters", []) if one["in"] == "query"]
    statuses = [status for status in operation["responses"] if status.isdecimal()]
    answers = ", ".join([*statuses, *_named(operation["responses"].get(statuses[0], {}))])
    roles = ", ".join(operation["x-roles"])
    body = ", ".join(_named(operation.get("requestBody", {})))
    return code(f"{method} {path}"), operation["summary"], ", ".join(query), body, answers, roles


def _named(part: dict[str, Any]) -> list[str]:
    """The names of its schemas, each in brackets where it is a list of these; else the media type."""
    found = []
    for kind, content in part.get("content", {}).items():
        schema = content.get("schema", {})
        choices = [_name(one) for one in schema.get("anyOf") or schema.get("oneOf") or [schema]]
        found.append(" or ".join(code(name) for name in choices) if all(choices) else code(kind))
    return found


def _name(schema: dict[str, Any]) -> str:
    if "items" in schema:
        inside = _name(schema["items"])
        return f"[{inside}]" if inside else ""
    name: str = schema.get("$ref", "").rpartition("/")[2]
    return name
