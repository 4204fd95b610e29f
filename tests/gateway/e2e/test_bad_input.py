"""Requests and recipes that are wrong: each has its answer, at once or at its time."""

import socket
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.gateway.e2e.running_gateway import API_KEY, CHAT, RunningGateway, model, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEAF = "import socket,sys,time; print('warming up', flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def taken() -> "socket.socket":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory, taken: socket.socket) -> AsyncIterator[RunningGateway]:
    port = taken.getsockname()[1]
    models = {
        "a": model("a"),
        "missing": {"cmd": ["no-such-program-anywhere", "${PORT}"]},
        "deaf": {"cmd": [sys.executable, "-c", DEAF], "load_timeout": 1},
        "crowded": {**model("crowded"), "port": port},
        "huge": {**model("huge"), "vram": "900g"},
    }
    async with running_gateway(tmp_path_factory.mktemp("bad"), models, scheduler="fifo", max_body=20_000) as made:
        yield made


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"messages": []}', 400, "bad_request"),
        (b"", 400, "bad_request"),
        (b'{"model": ', 400, "bad_request"),
        (b'{"model": 7}', 400, "bad_request"),
        (b"[]", 400, "bad_request"),
        (b'{"model": "nobody"}', 404, "model_not_found"),
        (b'{"model": "a", "x": "' + b"x" * 20_000 + b'"}', 413, "request_too_large"),
    ],
    ids=["no model", "no body", "half a body", "a number", "a list", "unknown", "too large"],
)
async def test_a_request_that_cannot_be_served_is_refused_at_once(
    gateway: RunningGateway, body: bytes, status: int, code: str
) -> None:
    answer = await gateway.ask("POST", CHAT, data=body)
    assert (answer.status, answer.code) == (status, code)
    assert gateway.servers.diary() == []


async def test_without_a_key_nothing_else_is_looked_at(gateway: RunningGateway) -> None:
    for body in ({"model": "a"}, {"model": "nobody"}, None):
        answer = await gateway.ask("POST", CHAT, body, token="wrong")
        assert (answer.status, answer.code) == (401, "invalid_api_key")
    answer = await gateway.ask("POST", CHAT, {"model": "a", "messages": []}, token=API_KEY)
    assert answer.status == 200


async def test_a_recipe_whose_program_does_not_exist_fails_at_once_and_says_so(gateway: RunningGateway) -> None:
    (answer,) = await gateway.answered(gateway.call("missing"))
    assert (answer.status, answer.code) == (502, "model_load_failed")
    assert "no-such-program-anywhere" in answer.message


async def test_a_server_that_never_answers_its_check_fails_at_its_timeout_and_names_its_log(
    gateway: RunningGateway,
) -> None:
    (answer,) = await gateway.answered(gateway.call("deaf"))
    assert (answer.status, answer.code) == (502, "model_load_failed")
    assert "not ready within 1 s" in answer.message
    assert "warming up" not in answer.message and "ostler models logs deaf" in answer.message


async def test_a_server_whose_port_is_taken_fails_and_says_so(gateway: RunningGateway) -> None:
    (answer,) = await gateway.answered(gateway.call("crowded"))
    assert (answer.status, answer.code) == (502, "model_load_failed")
    assert "is taken" in answer.message


async def test_who_waits_for_a_model_that_no_machine_could_hold_hears_so_and_may_leave(gateway: RunningGateway) -> None:
    waiting = gateway.call("huge")
    await gateway.queued("huge")
    assert "No machine that takes work could hold 'huge'" in (await gateway.queue())[0]["why"]
    waiting.cancel()
    await gateway.queued()


async def test_after_any_failure_the_next_model_is_served(gateway: RunningGateway) -> None:
    failed, served = await gateway.answered(gateway.call("missing"), gateway.call("a", "1"))
    assert (failed.status, served.status) == (502, 200)
