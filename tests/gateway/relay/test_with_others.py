"""Programs that others wrote on both sides: uvicorn as a model's server, aiohttp, urllib3, curl and websockets as callers."""

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
import urllib3
import uvicorn
import websockets
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from tests.gateway.relay.running_relay import CHAT, SECRET, RunningRelay

from ostler.gateway.control import Done, Open

KEY = {"Authorization": f"Bearer {SECRET}"}


async def completion(request: Request) -> Response:
    body = await request.json()
    usage = {"prompt_tokens": 2, "completion_tokens": body.get("max_tokens", 3)}
    if not body.get("stream"):
        return JSONResponse({"model": body["model"], "usage": usage})

    async def events() -> AsyncIterator[str]:
        for number in range(body["max_tokens"]):
            yield f"data: {json.dumps({'n': number})}\n\n"
            await asyncio.sleep(0)
        yield f"data: {json.dumps({'usage': usage})}\n\ndata: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def transcription(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({"model": b"\r\n\r\nsmall\r\n" in body, "size": len(body)})


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text[::-1])


@pytest.fixture(params=["h11", "httptools"])
async def others(relay: RunningRelay, request: pytest.FixtureRequest) -> AsyncIterator[RunningRelay]:
    routes = [
        Route(CHAT, completion, methods=["POST"]),
        Route("/v1/audio/transcriptions", transcription, methods=["POST"]),
        WebSocketRoute("/ws", echo),
    ]
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Starlette(routes=routes), http=request.param, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve([listening]))
    relay.hub.say(Open("i1", "small", "127.0.0.1", listening.getsockname()[1]))
    await relay.settled()
    yield relay
    server.should_exit = server.force_exit = True
    await serving


async def test_aiohttp_streams_asks_and_uploads(others: RunningRelay) -> None:
    url = f"http://127.0.0.1:{others.port}"
    async with aiohttp.ClientSession(headers=KEY) as session:
        for _ in range(3):
            body = {"model": "gpt-4", "stream": True, "max_tokens": 200}
            async with session.post(url + CHAT, json=body) as answer:
                lines = [line.strip() async for line in answer.content if line.strip()]
            assert len(lines) == 202 and lines[-1] == b"data: [DONE]"
            async with session.post(
                url + CHAT, json={"model": "small", "padding": "x" * 2_000_000}, expect100=True
            ) as answer:
                assert (await answer.json())["model"] == "small"
            form = aiohttp.FormData()
            form.add_field("file", b"RIFF" * 500_000, filename="a.wav")
            form.add_field("model", "small")
            async with session.post(url + "/v1/audio/transcriptions", data=form) as answer:
                said = await answer.json()
                assert said["model"] is True and said["size"] > 2_000_000
    done = await others.hub.hears(Done)
    assert (done.prompt_tokens, done.completion_tokens) == (2, 200)


async def test_urllib3_asks(others: RunningRelay) -> None:
    def ask() -> list[int]:
        with urllib3.PoolManager(headers=KEY) as pool:
            url = f"http://127.0.0.1:{others.port}{CHAT}"
            return [
                pool.request("POST", url, json={"model": "small", "max_tokens": n}).json()["usage"]["completion_tokens"]
                for n in range(5)
            ]

    assert await asyncio.to_thread(ask) == list(range(5))


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is missing: apt-get install curl")
@pytest.mark.parametrize("version", ["--http1.1", "--http1.0", "--http2"])
async def test_curl_streams_in_whatever_http_it_is_told_to_speak(others: RunningRelay, version: str) -> None:
    body = json.dumps({"model": "small", "stream": True, "max_tokens": 5})
    url = f"http://127.0.0.1:{others.port}{CHAT}"
    child = await asyncio.create_subprocess_exec(
        *("curl", "-sSN", version, "-H", f"x-api-key: {SECRET}", "-d", body, url), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await child.communicate()
    assert child.returncode == 0 and said.count(b"data: ") == 7


async def test_websockets_speak_through_the_relay(others: RunningRelay) -> None:
    url = f"ws://127.0.0.1:{others.port}/upstream/small/ws"
    async with websockets.connect(url, additional_headers=KEY) as connection:
        for text in ("hello", "x" * 500_000):
            await connection.send(text)
            assert await connection.recv() == text[::-1]
    assert (await others.hub.hears(Done)).status == 101
