"""Where the model servers of a test report, and are told what to do."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

WAIT_S = 60.0
News = dict[str, Any]


class Asked:
    """A request that a model server holds until it is told how to answer."""

    def __init__(self, news: News, writer: asyncio.StreamWriter) -> None:
        self.model = news["model"]
        self.tag = news["body"].get("hold")
        self.body = news["body"]
        self.path = news["path"]
        self.number = news["request"]
        self._writer = writer

    def say(self, text: str) -> None:
        self._order(say=text)

    def end(self, text: str = "") -> None:
        self._order(say=text, end=True)

    def _order(self, **more: Any) -> None:
        self._writer.write(json.dumps({"request": self.number, **more}).encode() + b"\n")


class ModelServers:
    def __init__(self) -> None:
        self.news: list[News] = []
        """All that the servers have told, in the order of its coming."""
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._came = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._listen, "127.0.0.1", 0, limit=2**23)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        self._server.close()
        for writer in self._writers.values():
            writer.close()

    def forget(self) -> None:
        """What has been told so far: another test begins."""
        self.news.clear()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pid = 0
            while line := await reader.readline():
                news = json.loads(line)
                pid = news.setdefault("pid", pid)
                self._writers[pid] = writer
                async with self._came:
                    self.news.append(news)
                    self._came.notify_all()
        except OSError:
            return

    # What has happened

    def diary(self) -> list[str]:
        """Loads and requests: `load a`, `a 1`."""
        return [line for line in map(_line, self.news) if line]

    def loads(self, model: str = "") -> int:
        return sum(news["event"] == "began" and model in ("", news["model"]) for news in self.news)

    def pid(self, model: str) -> int:
        """Of the newest process."""
        return next(
            int(news["pid"]) for news in reversed(self.news) if news["model"] == model and news["event"] == "began"
        )

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S), self._came:
                await self._came.wait_for(holds)
        except TimeoutError:
            raise AssertionError(f"never seen: {what}; instead: {self.diary()}") from None

    async def began(self, model: str, times: int = 1) -> None:
        await self.until(lambda: self.loads(model) >= times, f"{model} begins")

    async def asked(self, tag: str, times: int = 1) -> Asked:
        """The request with this tag, once a server has it, for the so-many-th time."""

        def such() -> list[News]:
            return [news for news in self.news if news["event"] == "asked" and news["body"].get("hold") == tag]

        await self.until(lambda: len(such()) >= times, f"{tag} is asked")
        news = such()[times - 1]
        return Asked(news, self._writers[news["pid"]])

    def has_been_asked(self, tag: str) -> bool:
        return any(news["event"] == "asked" and news["body"].get("hold") == tag for news in self.news)

    async def left(self, asked: Asked) -> None:
        """Its server has seen the connection close."""
        await self.until(
            lambda: any(
                news["event"] == "left" and news["request"] == asked.number and news["model"] == asked.model
                for news in self.news
            ),
            f"{asked.tag} is left",
        )

    def heal(self, model: str) -> None:
        """Its newest process answers its health check from now on."""
        self._writers[self.pid(model)].write(b'{"healthy": true}\n')


def _line(news: News) -> str:
    if news["event"] == "began":
        return f"load {news['model']}"
    if news["event"] == "asked":
        return f"{news['model']} {news['body'].get('hold', news['body'].get('tag', ''))}".strip()
    return ""
