"""Which function answers a request: the one that Starlette would have found, or Starlette itself."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ostler.hub.api.dispatch import Dispatch, Endpoint


def answering(name: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        if name == "fails":
            raise RuntimeError("by mistake")
        given = ",".join(f"{key}={value}" for key, value in sorted(request.path_params.items()))
        return Response(f"{name}({given})")

    return endpoint


async def others(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("others")(scope, receive, send)


async def failed(request: Request, error: Exception) -> Response:
    return Response(f"failed: {error}")


ROUTES = [
    ("GET", "/v1/jobs", "list"),
    ("POST", "/v1/jobs", "submit"),
    ("GET", "/v1/jobs/summary", "summary"),
    ("GET", "/v1/jobs/{id}", "show"),
    ("GET", "/v1/jobs/{id}/logs", "logs"),
    ("GET", "/v1/workers/{id}", "worker"),
    ("GET", "/errors/{name}", "error"),
    ("GET", "/assets/{path:path}", "asset"),
    ("PUT", "/v1/things/{number:int}", "thing"),
    ("GET", "/v1/fails", "fails"),
]


async def answer(method: str, path: str, **more: Any) -> str:
    app = Dispatch([(verb, route, answering(name)) for verb, route, name in ROUTES], others, failed)
    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", **more}
    said: list[bytes] = []

    async def send(message: Message) -> None:
        said.append(message.get("body", b""))

    async def receive() -> Message:
        return {"type": "http.request"}

    await app(scope, receive, send)
    return b"".join(said).decode()


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/jobs", "list()"),
        ("POST", "/v1/jobs", "submit()"),
        ("GET", "/v1/jobs/summary", "summary()"),
        ("GET", "/v1/jobs/01abc", "show(id=01abc)"),
        ("GET", "/v1/jobs/a b", "show(id=a b)"),
        ("GET", "/v1/jobs/01abc/logs", "logs(id=01abc)"),
        ("GET", "/v1/workers/gpu-1", "worker(id=gpu-1)"),
        ("GET", "/errors/no-space", "error(name=no-space)"),
        ("GET", "/assets/js/app.js", "asset(path=js/app.js)"),
        ("PUT", "/v1/things/12", "thing(number=12)"),
        ("GET", "/v1/fails", "failed: by mistake"),
    ],
)
async def test_a_request_is_answered_by_the_route_of_its_method_and_path(method: str, path: str, expected: str) -> None:
    assert await answer(method, path) == expected


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("HEAD", "/v1/jobs"),
        ("DELETE", "/v1/jobs"),
        ("GET", "/v1/jobs/"),
        ("GET", "/v1/jobs/01abc/"),
        ("GET", "/v1/jobs/01abc/else"),
        ("PUT", "/v1/things/twelve"),
        ("GET", "/"),
        ("GET", "//"),
        ("GET", "v1"),
        ("GET", ""),
    ],
)
async def test_what_no_route_is_for_is_left_to_starlette(method: str, path: str) -> None:
    assert await answer(method, path) == "others"


async def test_a_hub_below_a_path_of_a_proxys_is_left_to_starlette() -> None:
    assert await answer("GET", "/v1/jobs", root_path="/ostler") == "others"
