"""The model server of examples/models, as a process of its own, and the configurations beside it."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.ports import free_port

from ostler.gateway.core.models import Group
from ostler.hub import settings

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "models"
ROOT = FOLDER.parents[1]
ASK = {"messages": [{"role": "user", "content": "Why is the"}], "seed": 3}


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def streamed(self, path: str, body: Any) -> list[str]:
        """The data of each event, as far as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}))
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
            text = b""
            try:
                while piece := answer.read1():
                    text += piece
            except (http.client.IncompleteRead, ConnectionError):
                pass
            return [event.removeprefix("data: ") for event in text.decode().split("\n\n") if event]
        finally:
            connection.close()

    def until_ready(self) -> "Server":
        deadline = time.monotonic() + 30
        while not self._is_ready():
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            assert time.monotonic() < deadline, "it is not ready after 30 s"
            time.sleep(0.02)
        return self

    def _is_ready(self) -> bool:
        try:
            return self.call("GET", "/health")[0] == 200
        except OSError:
            return False


@contextmanager
def begun(*arguments: str, argv: list[str] | None = None) -> Iterator[Server]:
    port = free_port()
    command = argv or [sys.executable, str(FOLDER / "tiny_server.py"), "--port", "{port}", *arguments]
    command = [part.replace("{port}", str(port)).replace("{python}", sys.executable) for part in command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield Server(process, port)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def tiny() -> Iterator[Server]:
    with begun("--name", "pony") as server:
        yield server.until_ready()


def said(events: list[str]) -> str:
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def test_a_chat_says_the_same_streamed_and_whole(tiny: Server) -> None:
    status, whole = tiny.call("POST", "/v1/chat/completions", ASK)
    assert (status, whole["object"], whole["model"]) == (200, "chat.completion", "pony")
    text = whole["choices"][0]["message"]["content"]
    assert len(text.split()) > 5 and text.endswith((".", "?"))
    events = tiny.streamed("/v1/chat/completions", ASK)
    assert said(events) == text
    last = json.loads(events[-2])
    assert last["usage"] == whole["usage"]
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == len(events) - 2, "one event a token"
    assert whole["usage"]["prompt_tokens"] == 3


def test_it_goes_on_as_its_text_does(tiny: Server) -> None:
    asked = {"prompt": "The black", "temperature": 0, "max_tokens": 3}
    _, answer = tiny.call("POST", "/v1/completions", asked)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("colt needs room", "length")
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    other = [tiny.call("POST", "/v1/completions", {"prompt": "The", "seed": seed})[1] for seed in (1, 2)]
    assert other[0]["choices"] != other[1]["choices"]


def test_texts_that_share_words_are_near_each_other(tiny: Server) -> None:
    texts = ["the grey mare is eating", "the mare eats", "a slate by the door"]
    status, answer = tiny.call("POST", "/v1/embeddings", {"input": texts})
    vectors = [one["embedding"] for one in answer["data"]]
    near, far = (sum(a * b for a, b in zip(vectors[0], other, strict=True)) for other in vectors[1:])
    assert (status, near > far + 0.1) == (200, True), (near, far)
    assert sum(value * value for value in vectors[0]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("GET", "/v1/completions", None, 405),
        ("POST", "/v1/completions", [1], 400),
        ("POST", "/v1/completions", {"prompt": 3}, 400),
        ("POST", "/v1/completions", {"prompt": "a", "max_tokens": "many"}, 400),
        ("POST", "/v1/completions", {"prompt": "a", "seed": []}, 400),
        ("POST", "/v1/chat/completions", {"messages": []}, 400),
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user"}]}, 400),
        ("POST", "/v1/embeddings", {"input": [1]}, 400),
    ],
)
def test_what_it_cannot_answer_is_refused_in_openais_shape(
    tiny: Server, method: str, path: str, body: Any, status: int
) -> None:
    found, answer = tiny.call(method, path, body)
    assert (found, answer["error"]["type"]) == (status, "invalid_request_error")
    assert tiny.call("GET", "/v1/models")[1]["data"][0]["id"] == "pony", "and it goes on"


def test_one_connection_carries_many_requests_and_bodies_in_chunks(tiny: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", tiny.port, timeout=60)
    data = json.dumps({"prompt": "The", "max_tokens": 1, "temperature": 0}).encode()
    for body in (data, iter([data[:5], data[5:]]), data):
        chunked = not isinstance(body, bytes)
        connection.request("POST", "/v1/completions", body, encode_chunked=chunked)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["usage"]["completion_tokens"]) == (200, 1)
    connection.close()


def test_it_listens_before_it_is_ready() -> None:
    with begun("--load-seconds", "0.5") as server:
        seen = set()
        deadline = time.monotonic() + 30
        while 200 not in seen and time.monotonic() < deadline:
            try:
                seen.add(server.call("GET", "/health")[0])
            except OSError:
                continue
        assert seen == {503, 200}


def test_a_term_ends_it_well_while_it_loads_and_while_it_serves() -> None:
    for loads in ("60", "0"):
        with begun("--load-seconds", loads) as server:
            if loads == "0":
                server.until_ready()
            else:
                wait_for_port(server)
            server.process.terminate()
            assert server.process.wait(60) == 0


def wait_for_port(server: Server) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            server.call("GET", "/health")
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("it does not listen after 30 s")


def test_it_can_be_told_to_fail() -> None:
    with begun("--fail") as server:
        _, complaint = server.process.communicate(timeout=60)
        assert (server.process.returncode, "--fail" in complaint) == (1, True)


def test_it_can_be_told_to_crash_in_the_middle_of_an_answer() -> None:
    with begun("--crash-after", "1") as server:
        server.until_ready()
        assert server.call("POST", "/v1/chat/completions", ASK)[0] == 200
        events = server.streamed("/v1/chat/completions", {**ASK, "max_tokens": 20})
        assert 0 < len(events) <= 10 and "[DONE]" not in events
        assert server.process.wait(60) == -signal.SIGKILL


def test_a_caller_who_hangs_up_is_not_talked_to() -> None:
    """The answer would take more than an hour."""
    with begun("--tokens-per-second", "20") as server:
        server.until_ready()
        process = psutil.Process(server.process.pid)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as caller:
            body = json.dumps({**ASK, "stream": True, "max_tokens": 100_000}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
            caller.sendall(head.encode() + body)
            assert b"200 OK" in caller.recv(65536)
            assert is_talking(process)
        deadline = time.monotonic() + 30
        while is_talking(process):
            assert time.monotonic() < deadline, "it still talks, 30 s later"
            time.sleep(0.02)


def is_talking(process: psutil.Process) -> bool:
    return any(connection.status != psutil.CONN_LISTEN for connection in process.net_connections("tcp"))


# The files


def test_the_configuration_is_one_and_its_models_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", str(ROOT))
    found = settings.load(FOLDER / "ostler.toml").gateway
    assert list(found.models) == ["pony", "mare", "cart-horse"]
    assert found.notes == []
    assert found.config.groups == (
        Group(members=("mare", "cart-horse"), exclusive=False),
        Group(members=("pony",), persistent=True, exclusive=False),
    )
    for name, model in found.models.items():
        with begun(argv=[*model.spec("j").command, "--load-seconds", "0"]) as server:
            assert server.until_ready().call("GET", "/v1/models")[1]["data"][0]["id"] == name


def test_the_recipes_are_a_configuration() -> None:
    found = settings.load(FOLDER / "recipes.toml").gateway
    assert {"llama-3.1-8b", "qwen2.5-7b", "smollm", "whisper"} <= found.models.keys()
    for model in found.models.values():
        assert any("{port}" in argument for argument in model.command), "each is told its port"
        assert model.vram_gb or model.gpus or model.cpus, "and each says what it needs"
