"""The hub's HTTP side as anybody's program would call it: aiohttp and json."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

PATIENCE_S = 60.0
Document = dict[str, Any]


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self, status: int) -> Document:
        """The problem document that this answer must be."""
        assert self.status == status, self
        assert self.headers["Content-Type"].startswith("application/problem+json"), self
        document: Document = self.json()
        assert {"type", "title", "status", "detail"} <= document.keys()
        assert document["status"] == status
        assert document["detail"]
        return document


class Api:
    """One caller with one token ("" : none)."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=30))

    async def close(self) -> None:
        await self.session.close()

    async def call(self, method: str, path: str, **more: Any) -> Answer:
        async with self.session.request(method, self.url + path, **more) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, status: int = 200, **more: Any) -> Any:
        answer = await self.call("GET", path, **more)
        assert answer.status == status, answer
        return answer.json()

    async def post(self, path: str, body: Any = None, status: int = 200, **more: Any) -> Any:
        answer = await self.call("POST", path, **({"json": body} if body is not None else {}), **more)
        assert answer.status == status, answer
        return answer.json()

    # Jobs

    async def submit(self, **spec: Any) -> str:
        """The id of a new job; a program that does nothing where none is named."""
        return str((await self.post("/v1/jobs", {"command": ["true"], **spec}, 201))["id"])

    async def job(self, job_id: str) -> Document:
        found: Document = await self.get(f"/v1/jobs/{job_id}")
        return found

    async def state(self, job_id: str) -> str:
        return str((await self.job(job_id))["state"])

    async def why(self, job_id: str) -> Document:
        found: Document = await self.get(f"/v1/jobs/{job_id}/why")
        return found

    async def cancel(self, job_id: str) -> Document:
        found: Document = await self.post(f"/v1/jobs/{job_id}/cancel")
        return found

    async def requeue(self, job_id: str) -> Document:
        found: Document = await self.post(f"/v1/jobs/{job_id}/requeue")
        return found

    async def worker(self, worker_id: str) -> Document:
        found: Document = await self.get(f"/v1/workers/{worker_id}")
        return found

    # The feed

    @asynccontextmanager
    async def feed(self, after: int | None = None) -> AsyncIterator["Feed"]:
        headers = {"Last-Event-ID": str(after)} if after is not None else {}
        async with self.session.get(self.url + "/v1/events", headers=headers) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            yield Feed(answer)

    async def until(self, path: str, holds: Callable[[Document], bool]) -> Document:
        """The document at this path as soon as it is as wanted; looked at again whenever the feed tells something."""
        async with asyncio.timeout(PATIENCE_S), self.feed() as feed:
            while True:
                document: Document = await self.get(path)
                if holds(document):
                    return document
                await feed.next()

    async def until_state(self, job_id: str, state: str) -> Document:
        return await self.until(f"/v1/jobs/{job_id}", lambda job: job["state"] == state)

    async def until_status(self, worker_id: str, status: str) -> Document:
        return await self.until(f"/v1/workers/{worker_id}", lambda worker: worker["status"] == status)


class Feed:
    """Server-sent events, one by one."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> Document:
        fields: dict[str, str] = {}
        while True:
            line = (await asyncio.wait_for(self._answer.content.readline(), PATIENCE_S)).decode()
            assert line, "the feed ended"
            if line == "\n" and "data" in fields:
                event: Document = json.loads(fields["data"])
                assert str(event["seq"]) == fields["id"]
                assert event["kind"] == fields["event"]
                return event
            name, colon, value = line.rstrip("\n").partition(": ")
            if colon and name:
                fields[name] = value
