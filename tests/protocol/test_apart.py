"""Copies of the process: what they do is nobody's loss, and nothing of them stays."""

import asyncio
import os
import signal
import socket
import time

import psutil
import pytest

from ostler.hub.apart import Copy, CopyFailed, Send, told, tried


def test_what_a_copy_does_is_not_done_here() -> None:
    things = [1]
    assert tried(lambda: bool(things.pop()))
    assert not tried(lambda: things == [])
    assert told(lambda: str([*things, 2]).encode()) == b"[1, 2]"
    assert things == [1]


def test_a_copy_that_fails_says_so_here_and_its_reason_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CopyFailed, match="failed while it tried something"):
        tried(lambda: bool(1 // 0))
    assert "ZeroDivisionError" in capfd.readouterr().err


async def test_what_a_copy_sends_comes_piece_by_piece_however_long() -> None:
    def work(send: Send) -> None:
        for size in (0, 1, 300_000, 3_000_000):
            send(b"x" * size)

    copy = Copy(work, 5)
    sizes = []
    while (piece := await copy.next()) is not None:
        sizes.append(len(piece))
    copy.close()
    assert sizes == [0, 1, 300_000, 3_000_000]


async def test_a_copy_has_none_of_our_sockets_and_does_not_hear_our_signals() -> None:
    ours, theirs = socket.socketpair()

    def work(send: Send) -> None:
        try:
            os.fstat(ours.fileno())
        except OSError:
            send(b"closed")
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        send(str(handlers == [signal.SIG_DFL, signal.SIG_DFL]).encode())

    with ours, theirs:
        copy = Copy(work, 5)
        assert [await copy.next(), await copy.next(), await copy.next()] == [b"closed", b"True", None]
        copy.close()
        theirs.send(b"still open")
        assert ours.recv(20) == b"still open"


async def test_a_copy_that_nobody_listens_to_any_more_is_ended_and_leaves_no_zombie() -> None:
    def work(send: Send) -> None:
        send(str(os.getpid()).encode())
        time.sleep(600)

    copy = Copy(work, 5)
    pid = int(await copy.next() or b"0")
    assert psutil.pid_exists(pid)
    copy.close()
    async with asyncio.timeout(60):
        while psutil.pid_exists(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_copies_of_a_copy_end_with_it() -> None:
    def work(send: Send) -> None:
        tried(lambda: bool(send(str(os.getpid()).encode()) or time.sleep(600)))

    copy = Copy(work, 5)
    pid = int(await copy.next() or b"0")
    assert psutil.pid_exists(pid)
    copy.close()
    async with asyncio.timeout(60):
        while _runs(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whoever inherits it may not have seen its end yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_copy_that_computes_for_too_long_is_ended_by_itself() -> None:
    def work(send: Send) -> None:
        while True:
            pass

    copy = Copy(work, 1)
    assert await copy.next() is None
    copy.close()
