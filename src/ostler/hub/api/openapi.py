"""OpenAPI 3.1, made from the table of routes."""

import re
from typing import Any

import msgspec

from ostler import __version__
from ostler.hub.api.routes import Route
from ostler.hub.permissions import ANY_METHOD, ANYONE
from ostler.hub.web.cookies import COOKIE, CSRF_HEADER

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {"type": "object", "properties": {"where": {"type": "string"}, "what": {"type": "string"}}},
        },
    },
}


def describe(routes: list[Route]) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.body, route.answer) if kind is not None]
    _, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for method in METHODS if route.method == ANY_METHOD else [route.method]:
            path = route.path.replace(":path}", "}")
            paths.setdefault(path, {})[method.lower()] = _operation(route, method, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ostler", "version": __version__},
        "security": [{"bearer": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _PROBLEM},
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


def _operation(route: Route, method: str, path: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{method.lower()} {path}",
        "responses": {
            str(route.status): {"description": "done", **_content(route.answer)},
            **{str(status): {"description": "done"} for status in route.also},
            "default": {
                "description": "an error",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
        "x-roles": list(route.roles),
    }
    named = [{"name": name, "in": "path", "required": True} for name in re.findall(r"{(\w+)}", path)]
    named += [{"name": name, "in": "query", "required": False} for name in route.query]
    if named:
        operation["parameters"] = [{**one, "schema": {"type": "string"}} for one in named]
    if route.takes:
        operation["requestBody"] = {"required": True, "content": {route.takes: {"schema": {"type": "string"}}}}
    if route.body is not None:
        operation["requestBody"] = {"required": True, **_content(route.body)}
    if route.roles == ANYONE:
        operation["security"] = []
    return operation


def _content(kind: Any) -> dict[str, Any]:
    if kind is None:
        return {}
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}}
