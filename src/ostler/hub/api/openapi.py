"""OpenAPI 3.1, made from the table of routes."""

import re
from typing import Any

import msgspec

from ostler import __version__
from ostler.hub.api import described
from ostler.hub.api.routes import Route
from ostler.hub.permissions import ANY_METHOD, ANYONE
from ostler.hub.web.cookies import COOKIE, CSRF_HEADER

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["where", "what"],
                "properties": {"where": {"type": "string"}, "what": {"type": "string"}},
            },
        },
    },
}


def describe(routes: list[Route]) -> dict[str, Any]:
    types = _Types([kind for route in routes for kind in (_body(route), _answer(route)) if kind is not None])
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for method in METHODS if route.method == ANY_METHOD else [route.method]:
            path = _plain(route.path)
            paths.setdefault(path, {})[method.lower()] = _operation(route, method, path, types)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ostler", "version": __version__},
        "security": [{"bearer": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": {**types.components, "Problem": _PROBLEM},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE,
                    "description": f"from POST /v1/session; with {CSRF_HEADER} on everything that is not GET",
                },
            },
        },
    }


class _Types:
    """What bodies and answers look like."""

    def __init__(self, told: list[Any]) -> None:
        kinds = [kind for one in told for kind in _each(one)]
        found, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
        self._kinds, self._found = kinds, found
        self.components = {name: _without_defaults(shape) for name, shape in components.items()}

    def content(self, told: Any) -> dict[str, Any]:
        found = [self._found[self._kinds.index(kind)] for kind in _each(told)]
        return {"content": {"application/json": {"schema": found[0] if len(found) == 1 else {"anyOf": found}}}}


def _each(told: Any) -> tuple[Any, ...]:
    """One type, or any of several."""
    return told if isinstance(told, tuple) else (told,)


def _without_defaults(shape: dict[str, Any]) -> dict[str, Any]:
    """A field with a default may be left out, in a body and in an answer; generators of clients take it for one that
    is always there."""
    fields = shape.get("properties", {})
    plain = {name: {key: one for key, one in field.items() if key != "default"} for name, field in fields.items()}
    return {**shape, "properties": plain} if fields else shape


def _plain(path: str) -> str:
    return path.replace(":path}", "}")


def _body(route: Route) -> Any:
    return described.BODIES.get((route.method, _plain(route.path)), route.body)


def _answer(route: Route) -> Any:
    return route.answer or described.ANSWERS.get((route.method, _plain(route.path)))


def _operation(route: Route, method: str, path: str, types: _Types) -> dict[str, Any]:
    answer, body, media = _answer(route), _body(route), described.MEDIA.get((method, path))
    told = types.content(answer) if answer is not None else {}
    if media is not None:
        told = {"content": {media: {"schema": {"type": "string"}}}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _name(method, path),
        "responses": {
            str(route.status): {"description": "done", **told},
            **{str(status): {"description": "done", **(told if status == 200 else {})} for status in route.also},
            "default": {
                "description": "an error",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
        "x-roles": list(route.roles),
    }
    named = [{"name": name, "in": "path", "required": True} for name in re.findall(r"{(\w+)}", path)]
    named += [{"name": name, "in": "query", "required": False} for name in route.query]
    named += [{"name": name, "in": "header", "required": False} for name in described.HEADERS.get((method, path), ())]
    if named:
        text = {"type": "string"}
        operation["parameters"] = [
            {**one, "schema": described.QUERY.get(str(one["name"]), text) if one["in"] == "query" else text}
            for one in named
        ]
    if route.takes:
        operation["requestBody"] = {"required": True, "content": {route.takes: {"schema": {"type": "string"}}}}
    if body is not None:
        operation["requestBody"] = {"required": True, **types.content(body)}
    if route.roles == ANYONE:
        operation["security"] = []
    return operation


def _name(method: str, path: str) -> str:
    """`GET /v1/jobs/{id}/logs` is getJobsByIdLogs: what a client that is made of this calls it."""
    parts = [part for part in path.split("/") if part not in ("", "v1")]
    words = ["By" + part.strip("{}").title() if part.startswith("{") else part for part in parts]
    flat = [word for part in words or ["index"] for word in re.split(r"[^A-Za-z0-9]+", part) if word]
    return method.lower() + "".join(word[:1].upper() + word[1:] for word in flat)
