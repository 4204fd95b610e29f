"""A notice on its way: to a webhook, to a topic of ntfy, or to the standard input of the operator's own command."""

import asyncio
import contextlib
import os
import signal
import tempfile
from typing import IO, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from ostler import __version__
from ostler.domain.finite import encode
from ostler.domain.notices import FAILED, NotifySettings, Target
from ostler.hub.outbound import Forbidden, Judged, judge_literal, judged_socket

TRY_S = 15.0
MOST_READ = 64 * 1024
TITLE = "{title}"
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
Document = dict[str, Any]


class Hopeless(Exception):
    """It would be the same the next time."""


class Notice(msgspec.Struct, kw_only=True):
    seq: int
    """That of its line in the feed: one that comes twice is known by it."""
    event: str
    title: str
    text: str
    document: Document


class Deliverer:
    """One try each. An exception says why it was in vain."""

    def __init__(self, settings: NotifySettings) -> None:
        self._settings = settings
        self._web: dict[bool, aiohttp.ClientSession] = {}

    async def deliver(self, notice: Notice, target: Target) -> None:
        if target.command:
            await _run(notice, target.command)
        elif target.topic:
            message = {"topic": target.topic, "title": notice.title, "message": notice.text, "tags": [notice.event]}
            urgent = {"priority": 4} if notice.event == FAILED else {}
            await self._post(self._settings.ntfy, {**message, **urgent}, trusted=True)
        else:
            await self._post(target.url, notice.document, trusted=target.trusted)

    async def _post(self, url: str, document: Document, *, trusted: bool) -> None:
        try:
            if not trusted:
                judge_literal(urlsplit(url).hostname or "", self._settings.allow)
            data = encode(document)
            async with self._session(trusted).post(url, data=data, allow_redirects=False) as answer:
                await answer.content.read(MOST_READ)
        except (Forbidden, aiohttp.InvalidURL) as error:
            raise Hopeless(str(error)) from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, Forbidden):
                raise Hopeless(str(error.os_error)) from None
            raise
        if answer.status in (408, 425, 429) or answer.status >= 500:
            raise ConnectionError(f"it answered {answer.status}")
        if not 200 <= answer.status < 300:
            raise Hopeless(f"it answered {answer.status}")

    def _session(self, trusted: bool) -> aiohttp.ClientSession:
        """Without cookies, proxies and connections that are kept: one notice knows nothing of another."""
        if trusted not in self._web:
            resolver = None if trusted else Judged(self._settings.allow)
            sockets = None if trusted else judged_socket(self._settings.allow)
            connector = aiohttp.TCPConnector(
                resolver=resolver, socket_factory=sockets, force_close=True, use_dns_cache=False
            )
            self._web[trusted] = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,  # what is small on its way may be larger than the hub's memory
                timeout=aiohttp.ClientTimeout(total=TRY_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"ostler/{__version__}", "Content-Type": "application/json"},
                trust_env=False,
            )
        return self._web[trusted]

    async def close(self) -> None:
        for session in self._web.values():
            await session.close()


async def _run(notice: Notice, command: tuple[str, ...]) -> None:
    argv = [word.replace(TITLE, notice.title) for word in command]
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= {"OSTLER_EVENT": notice.event, "OSTLER_NOTICE": encode(notice.document).decode()}
    # Files, not pipes: whatever it leaves behind in the background may hold on to them.
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as said:
        text.write(notice.text.encode() + b"\n")
        text.seek(0)
        code = await _ended(argv, env, text, said)
        if code:
            said.seek(max(0, said.seek(0, os.SEEK_END) - MOST_READ))
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise ConnectionError(f"{argv[0]} ended with {code}: {''.join(last)[:200]}")


async def _ended(argv: list[str], env: dict[str, str], text: IO[bytes], said: IO[bytes]) -> int:
    null = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=text, stdout=null, stderr=said, env=env, start_new_session=True
        )
    except OSError as error:
        raise Hopeless(f"{argv[0]} cannot be run: {error.strerror}") from None
    try:
        async with asyncio.timeout(TRY_S):
            return await process.wait()
    except TimeoutError:
        raise TimeoutError(f"{argv[0]} took over {TRY_S:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
