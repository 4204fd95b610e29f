"""What completes a chunk that broke off, wherever that was."""

from types import SimpleNamespace

import pytest
from httptools import HttpResponseParser

from ostler.gateway.control import STRAIGHT
from ostler.gateway.relay.chunks import OpenChunk
from ostler.gateway.relay.instances import Instance
from ostler.gateway.relay.limits import Limits
from ostler.gateway.relay.upstream import Upstream

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = b"b\r\ndata: one\n\n\r\n00C;x=y\r\ndata: a\r\nb\r\n\r\n4\r\n: z\r\r\n"


class Body:
    """Reads what a caller has, as a parser of its own does."""

    def __init__(self, data: bytes) -> None:
        self.is_complete = False
        HttpResponseParser(self).feed_data(HEAD + data)

    def on_message_complete(self) -> None:
        self.is_complete = True


class Asked:
    """As much of an exchange as an answer needs."""

    request = SimpleNamespace(head=SimpleNamespace(method=b"POST", upgrades=False))
    bytes_out = 0

    def answer_begins(self, upstream: Upstream) -> None:
        upstream.write = lambda data: None

    def passes_on(self, upstream: Upstream) -> None:
        pass


def rest_after(*pieces: bytes) -> OpenChunk | None:
    upstream = Upstream(Instance("i", "h", 1, STRAIGHT, None, Limits()))  # type: ignore[arg-type]
    upstream.exchange = Asked()  # type: ignore[assignment]
    for piece in (HEAD, *pieces):
        upstream.data_received(piece)
    return upstream._open_chunk


@pytest.mark.parametrize("first", range(len(BODY)))
def test_a_body_that_breaks_off_anywhere_is_completed_in_whatever_pieces_it_came(first: int) -> None:
    for end in range(first, len(BODY) + 1):
        chunk = rest_after(*filter(None, (BODY[:first], BODY[first:end])))
        rest = b"" if chunk is None else chunk.rest()
        if rest is None:
            assert chunk is not None and (set(chunk.line) <= {ord("0")} or b";" in chunk.line), "its line is unfinished"
            continue
        assert Body(BODY[:end] + rest + b"3\r\nend\r\n0\r\n\r\n").is_complete
