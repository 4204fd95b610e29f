"""The relay's process and the socket to it. A relay that dies is started again, and the hub goes on meanwhile."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from ostler.gateway import control
from ostler.gateway.control import ToHub, ToRelay
from ostler.tls import Identity

_log = logging.getLogger("ostler.gateway")
READ = 256 * 1024
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
STOPS_WITHIN_S = 15.0


class Link:
    """`heard` takes what the relay says, `began` is called for each new relay process and `lost` when one has gone."""

    def __init__(
        self,
        listen: str,
        spool: Path,
        heard: Callable[[ToHub], None],
        began: Callable[[], None],
        lost: Callable[[], None],
        identity: Identity | None = None,
    ) -> None:
        self._identity = identity
        self._listen = listen
        self._spool = spool
        self._heard = heard
        self._began = began
        self._lost = lost
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: list[ToRelay] = []
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self.generation = 0
        """How many relays there have been: each counts its requests anew."""

    async def run(self) -> None:
        """For as long as the hub runs."""
        pause_s = FIRST_PAUSE_S
        while not self._is_over():
            started = asyncio.get_running_loop().time()
            with contextlib.suppress(OSError):
                await self._serve()
            self._lost()
            if self._is_over():
                return
            ran_s = asyncio.get_running_loop().time() - started
            pause_s = FIRST_PAUSE_S if ran_s > LONGEST_PAUSE_S else min(LONGEST_PAUSE_S, 2 * pause_s)
            _log.error("the gateway's relay has ended; it is started again in %.1f s", pause_s)
            await asyncio.sleep(pause_s)

    def stays_at(self, port: int) -> None:
        """The next relay listens where this one does, also where the port was the system's choice."""
        self._listen = f"{self._listen.rpartition(':')[0]}:{port}"

    def _is_over(self) -> bool:
        return self._stopping

    async def _serve(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ostler.gateway.relay",
                "--listen",
                self._listen,
                "--control",
                str(theirs.fileno()),
                "--spool",
                str(self._spool),
                *self._tls(),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self.generation += 1
        self._began()
        frames = control.frames_to_hub()
        try:
            while data := await reader.read(READ):
                for message in frames.feed(data):
                    self._heard(message)
        except msgspec.DecodeError as error:
            _log.error("the gateway's relay said something that is no message: %s", error)
        finally:
            self._writer.close()
            self._writer = None
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _tls(self) -> list[str]:
        if self._identity is None:
            return []
        return ["--tls-cert", str(self._identity.certificate), "--tls-key", str(self._identity.key)]

    def say(self, message: ToRelay) -> None:
        """What is said in one tick of the loop goes out together."""
        if self._writer is None:
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(message)

    def _flush(self) -> None:
        messages, self._waiting = self._waiting, []
        if self._writer is not None and messages:
            self._writer.write(control.frame(messages))

    async def stop(self, drain_s: float) -> None:
        self._stopping = True
        self.say(control.Stop(drain_s))
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), drain_s + STOPS_WITHIN_S)
