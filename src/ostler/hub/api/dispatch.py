"""The way from a request to the function that answers it, without asking every route in turn: a submit is one of more
than a hundred. What is not found here is Starlette's, which knows what to say about it."""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from starlette.convertors import Convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]
Failed = Callable[[Request, Exception], Awaitable[Response]]


class Pattern(NamedTuple):
    """A path with names in it."""

    path: re.Pattern[str]
    convertors: dict[str, Convertor[object]]
    endpoint: Endpoint


class Dispatch:
    def __init__(self, routes: Iterable[tuple[str, str, Endpoint]], others: ASGIApp, failed: Failed) -> None:
        """`routes`: method, path and who answers. `others` is asked for all the rest; `failed` answers for who did not
        mean to fail."""
        self._others = others
        self._failed = failed
        self._exact: dict[tuple[str, str], Endpoint] = {}
        self._named: dict[tuple[str, str], list[Pattern]] = {}
        """By method and by the first word of the path, or the first two."""
        for method, path, endpoint in routes:
            if "{" in path:
                expression, _, convertors = compile_path(path)
                known = path.partition("{")[0].rstrip("/")
                pattern = Pattern(expression, dict(convertors), endpoint)
                self._named.setdefault((method, "/".join(known.split("/")[:3])), []).append(pattern)
            else:
                self._exact[method, path] = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._find(scope) if scope["type"] == "http" and not scope.get("root_path") else None
        if endpoint is None:
            await self._others(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await endpoint(request)
        except Exception as error:
            response = await self._failed(request, error)
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> Endpoint | None:
        method, path = scope["method"], scope["path"]
        endpoint = self._exact.get((method, path))
        if endpoint is not None:
            scope["path_params"] = {}
            return endpoint
        words = path.split("/", 3)
        for known in ("/".join(words[:3]), "/".join(words[:2])):
            for pattern in self._named.get((method, known), ()):
                if (found := pattern.path.match(path)) is not None:
                    named = found.groupdict().items()
                    scope["path_params"] = {name: pattern.convertors[name].convert(value) for name, value in named}
                    return pattern.endpoint
        return None
