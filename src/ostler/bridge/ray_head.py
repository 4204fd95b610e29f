"""The head of a Ray cluster, over HTTP."""

from typing import Any

import aiohttp
import msgspec

from ostler.bridge.base import Unanswered

ANSWER_S = 30.0
Document = dict[str, Any]


class Head:
    def __init__(self, address: str, token: str = "") -> None:
        self.address = address.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def get(self, path: str) -> Any:
        status, told = await self.ask("GET", path)
        if status != 200:
            raise Unanswered(f"{path} is answered with {status}: {last_line(told)}")
        return told

    async def ask(self, method: str, path: str, body: Document | None = None) -> tuple[int, Any]:
        """The answer's status, and what it says."""
        limit = aiohttp.ClientTimeout(total=ANSWER_S)
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=limit) as session,
                session.request(method, self.address + path, json=body) as answer,
            ):
                text = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unanswered(f"{self.address}: {str(error) or 'no answer'}") from None
        try:
            return answer.status, msgspec.json.decode(text)
        except msgspec.DecodeError:
            return answer.status, text.decode(errors="replace")


def last_line(told: Any) -> str:
    lines = str(told).strip().splitlines()
    return lines[-1][:200] if lines else "no reason given"
