"""What leaves together: heads with their bodies, and what nobody waits for with what somebody does."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from ostler.hub.access import Caller
from ostler.hub.head import HeadWithBody
from ostler.hub.session import Session
from ostler.runtime.link import Link

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Recorder(asyncio.Transport):
    """Each write as it would leave."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.closed = False
        self.written = asyncio.Event()

    def write(self, data: Any) -> None:
        self.pieces.append(bytes(data))
        self.written.set()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(cast(Sequence[bytes], list_of_data)))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass


async def test_a_head_and_its_body_leave_in_one_piece() -> None:
    transport = Recorder()
    answer = HeadWithBody(transport)
    answer.write(HEAD)
    assert transport.pieces == []
    answer.write(b"ok")
    await asyncio.sleep(0)
    assert transport.pieces == [HEAD + b"ok"]


async def test_what_follows_a_head_and_its_first_piece_leaves_as_it_comes() -> None:
    transport = Recorder()
    answer = HeadWithBody(transport)
    for data in (HEAD, b"one", b"two"):
        answer.write(data)
    assert transport.pieces == [HEAD + b"one", b"two"]


async def test_a_head_whose_body_is_not_there_yet_leaves_without_it() -> None:
    transport = Recorder()
    answer = HeadWithBody(transport)
    answer.write(HEAD)
    await transport.written.wait()
    answer.write(b"later")
    assert transport.pieces == [HEAD, b"later"]


async def test_who_is_to_go_on_sending_is_told_at_once() -> None:
    transport = Recorder()
    answer = HeadWithBody(transport)
    answer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert transport.pieces == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    answer.write(HEAD)
    assert len(transport.pieces) == 1


async def test_a_head_leaves_before_its_connection_is_closed() -> None:
    transport = Recorder()
    answer = HeadWithBody(transport)
    answer.write(HEAD)
    answer.close()
    assert transport.pieces == [HEAD]
    assert answer.is_closing()


class Nobody:
    def heard(self, session: Session, data: str | bytes) -> None: ...
    def lost(self, session: Session) -> None: ...


def session_over(transport: Recorder) -> Session:
    session = Session(Nobody(), 1, Caller(user="w", role="worker", token_id="t"), "")
    session.take_over(transport, set())
    return session


async def test_what_a_worker_does_not_wait_for_leaves_with_what_it_waits_for() -> None:
    transport = Recorder()
    session = session_over(transport)
    session.send(b"an ack", unhurried=True)
    await asyncio.sleep(0)
    assert transport.pieces == []
    session.send(b"a task")
    await transport.written.wait()
    (piece,) = transport.pieces
    assert piece.index(b"an ack") < piece.index(b"a task")


async def test_what_a_worker_does_not_wait_for_leaves_by_itself_too() -> None:
    transport = Recorder()
    session = session_over(transport)
    session.send(b"an ack", unhurried=True)
    session.send(b"another", unhurried=True)
    async with asyncio.timeout(60):
        await transport.written.wait()
    (piece,) = transport.pieces
    assert piece.index(b"an ack") < piece.index(b"another")


async def test_orders_that_nobody_waits_for_leave_with_the_next_that_somebody_does() -> None:
    transport = Recorder()
    link = Link(lambda line: None, lambda link: None)
    link.connection_made(transport)
    link.send({"do": "forget"}, unhurried=True)
    await asyncio.sleep(0)
    assert transport.pieces == []
    link.send({"do": "launch"})
    await transport.written.wait()
    assert transport.pieces == [b'{"do":"forget"}\n{"do":"launch"}\n']
    transport.written.clear()
    link.send({"do": "forget"}, unhurried=True)
    async with asyncio.timeout(60):
        await transport.written.wait()
    assert transport.pieces[1:] == [b'{"do":"forget"}\n']
