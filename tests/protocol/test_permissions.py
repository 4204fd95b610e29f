"""The table of permissions, against a real hub: every route and every message, for every role and for none."""

import contextlib
import itertools
import json
import sqlite3

import aiohttp
import pytest
from starlette.responses import Response
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

from ostler.hub.api.openapi import METHODS
from ostler.hub.api.routes import Route, SocketRoute, mounted
from ostler.hub.permissions import (
    ANY_METHOD,
    ANYONE,
    EVERYBODY,
    JOIN,
    JOIN_ONCE,
    MESSAGES,
    ROUTES,
    SOCKET,
    NoPermission,
    Roles,
)
from ostler.wire.messages import FROM_CLI, FROM_WORKER, TYPES

NAMES = {"{id}": "something", "{sha256}": "0" * 64, "{name}": "any", "{path:path}": "x/y", "{name:path}": "a/b"}
LAST = ("/v1/leave", "/v1/session")
"""What ends a token or a session."""


def concrete(path: str) -> str:
    for name, value in NAMES.items():
        path = path.replace(name, value)
    return path.replace("{relay_id}", "nobody").replace("{digest}", "0" * 64)


def calls() -> list[tuple[str, str, Roles]]:
    """Every method and path of the table, and who may; a GET answers HEAD, too."""
    found = []
    for (method, path), roles in ROUTES.items():
        every = (*METHODS, "HEAD") if method == ANY_METHOD else ("GET", "HEAD") if method == "GET" else (method,)
        found += [(one, path, roles) for one in every if method != SOCKET]
    found = [
        one for one in found if (one[0] != "HEAD" or ("HEAD", one[1]) not in ROUTES or one[2] == ROUTES["HEAD", one[1]])
    ]
    return sorted(found, key=lambda one: one[1] in LAST)


async def status_of(caller: Api, method: str, path: str) -> int:
    """Without the body: some answers never end."""
    async with caller.session.request(method, caller.url + concrete(path)) as answer:
        return answer.status


async def of_role(hub: RunningHub, role: str) -> Api:
    if role == JOIN:
        return hub.caller(hub.join_token)
    return await hub.user("somebody", role)


# The table itself


async def test_every_route_and_every_socket_has_its_line_and_every_line_its_route(hub: RunningHub) -> None:
    gate = hub._hub.app
    served = {(route.method, route.path) for route in gate.routes}  # type: ignore[attr-defined]
    served |= {(SOCKET, socket.path) for socket in gate.sockets}  # type: ignore[attr-defined]
    assert served == set(ROUTES)


async def test_the_description_of_the_api_has_every_route(api: Api) -> None:
    described = {
        (method.upper(), path)
        for path, methods in (await api.get("/openapi.json"))["paths"].items()
        for method in methods
    }
    wanted = {(method, path.replace(":path}", "}")) for method, path, _ in calls() if method != "HEAD"}
    assert {one for one in described if one[0] != "HEAD"} == wanted


def test_a_route_or_a_socket_without_a_line_starts_no_hub() -> None:
    async def nothing(_: object) -> Response:
        return Response()

    async def silence(_: object) -> None:
        return None

    for routes, sockets in (
        ([Route(method="POST", path="/v1/forgotten", handler=nothing, summary="Do it")], []),
        ([Route(method="DELETE", path="/v1/jobs/{id}", handler=nothing, summary="Do it")], []),
        ([], [SocketRoute(path="/v1/ws/forgotten", endpoint=silence)]),
    ):
        with pytest.raises(NoPermission, match="has no line in"):
            mounted(routes, sockets, lambda scope, error: None)


def test_every_message_of_workers_and_tools_has_its_line_and_no_other() -> None:
    assert set(MESSAGES) == FROM_WORKER | FROM_CLI


# Routes


@pytest.mark.parametrize("role", EVERYBODY)
async def test_a_role_gets_as_far_as_the_table_says_and_no_further(hub: RunningHub, role: str) -> None:
    caller = await of_role(hub, role)
    for method, path, roles in calls():
        status = await status_of(caller, method, path)
        if roles == ANYONE:
            assert status != 403, (method, path)
        else:
            assert (status == 403) == (role not in roles), (method, path, status)
            assert status != 401, (method, path)


@pytest.mark.parametrize("brought", ["nothing", "an unknown token", "a revoked token", "an expired token"])
async def test_without_a_good_token_only_the_open_paths_answer(hub: RunningHub, brought: str) -> None:
    token = "" if brought == "nothing" else "x" * 43
    if brought in ("a revoked token", "an expired token"):
        created = await hub.api.post("/v1/tokens", {"role": "operator", "user": "ann", "expires_s": 60}, 201)
        token = created["token"]
        if brought == "a revoked token":
            await hub.api.call("DELETE", f"/v1/tokens/{created['id']}")
        hub.clock.now += 61
    caller = hub.caller(token)
    for method, path, roles in calls():
        status = await status_of(caller, method, path)
        assert (status == 401) == (roles != ANYONE or path == "/v1/session"), (method, path, status)
    for method, path in itertools.product(
        ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"), ("/", "/v1/health", "/assets/x")
    ):
        assert await status_of(caller, method, path) == 401


def ledger_of(hub: RunningHub) -> list[str]:
    """All that the ledger holds, but for who was refused what."""
    with contextlib.closing(sqlite3.connect(f"file:{hub.state / 'ostler.db'}?mode=ro", uri=True)) as db:
        return [line for line in db.iterdump() if not line.startswith(('INSERT INTO "audit"', 'INSERT INTO "kept"'))]


async def test_no_get_changes_anything(hub: RunningHub) -> None:
    worker = await hub.worker("any")
    job = await hub.api.submit(id="something", command=["true"])
    task = await worker.take(job)
    before = ledger_of(hub)
    assert any("something" in line for line in before)
    for role in ("operator", "user", "worker"):
        caller = (
            hub.api if role == "operator" else hub.caller(hub.join_token) if role == "worker" else await hub.user("x")
        )
        before = ledger_of(hub)
        for method, path, _ in calls():
            if method in ("GET", "HEAD"):
                await status_of(caller, method, path)
        assert ledger_of(hub) == before
    assert [found["type"] for found in await worker.heard() if found["type"] != "log_request"] == []
    await worker.end(task)


# Sockets and messages


async def opened(caller: Api, path: str) -> aiohttp.ClientWebSocketResponse | int:
    """The socket, or the status with which it was refused."""
    try:
        return await caller.session.ws_connect(caller.url.replace("http", "ws", 1) + concrete(path))
    except aiohttp.WSServerHandshakeError as refused:
        return refused.status


SOCKETS = [(path, roles) for (method, path), roles in ROUTES.items() if method == SOCKET]


@pytest.mark.parametrize("role", [*EVERYBODY, "nobody"])
async def test_a_socket_opens_for_the_roles_of_the_table_and_takes_their_messages_alone(
    hub: RunningHub, role: str
) -> None:
    caller = hub.caller("") if role == "nobody" else await of_role(hub, role)
    for path, roles in SOCKETS:
        found = await opened(caller, path)
        if role not in roles:
            assert found == (401 if role == "nobody" else 403), path
        elif isinstance(found, int):
            assert found == 404, path
        else:
            for kind in TYPES:
                await found.send_str(json.dumps({"type": kind, "payload": {}}))
                answer = json.loads(await found.receive_str(timeout=60))
                refused = "is not a message that this side takes" in answer.get("error", "")
                assert refused == (role not in MESSAGES.get(kind, ())), (path, kind, answer)
            await found.close()


async def test_a_token_that_is_exchanged_once_opens_nothing_else(hub: RunningHub) -> None:
    allowed = {(method, path) for method, path, roles in calls() if JOIN_ONCE in roles}
    assert allowed == {("POST", "/v1/enrol")}


async def test_a_token_for_the_gateway_opens_nothing_on_the_hub_but_its_own_name(hub: RunningHub) -> None:
    allowed = {(method, path) for method, path, roles in calls() if "gateway" in roles}
    assert allowed == {("GET", "/v1/me"), ("HEAD", "/v1/me")}
