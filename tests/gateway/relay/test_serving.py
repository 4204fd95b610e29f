"""Through an open gate: what goes to the model's server, and what comes back."""

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest
from tests.gateway.relay.running_relay import CHAT, PLAIN, SECRET, Heard, Line, RunningRelay, chat, key, until

from ostler.gateway.control import Answer, Arrived, Asked, Cancelled, Done, Open, Setup, Used

B = "bound"


def form(*parts: tuple[str, bytes]) -> bytes:
    lines = [
        b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (B.encode(), n.encode(), v)
        for n, v in parts
    ]
    return b"".join(lines) + b"--%b--\r\n" % B.encode()


FORM = f"Content-Type: multipart/form-data; boundary={B}\r\n"


async def test_a_request_goes_verbatim_to_an_open_instance_and_the_hub_is_not_asked(relay: RunningRelay) -> None:
    server = await relay.serving()
    body = b'{ "messages": [ 1.50 ],\n "model" : "small" }'
    reply = await relay.call(body, more="X-Custom: yes\r\nContent-Type: application/json\r\n")
    assert reply.status == 200 and reply.json == {"target": CHAT, "size": len(body)}
    (heard,) = server.heard
    assert heard.body == body
    assert heard.headers == {
        **{"host": f"127.0.0.1:{server.port}", "x-custom": "yes"},
        **{"content-type": "application/json", "content-length": str(len(body))},
        "x-request-id": reply.headers["x-request-id"],
    }
    done = await relay.hub.hears(Done)
    assert (done.instance, done.model, done.status, done.user, done.asked) == ("i1", "small", 200, "ann", False)
    assert done.bytes_in == len(body) and done.bytes_out == len(reply.body) and 0 < done.first_byte_s <= done.total_s
    assert (await relay.hub.hears(Used)).instance == "i1"
    assert not relay.hub.heard(Arrived)


async def test_a_thousand_requests_use_one_connection_on_each_side(relay: RunningRelay) -> None:
    server = await relay.serving()
    client = await relay.client()
    for number in range(1000):
        assert (await client.call(chat(number=number))).status == 200
    assert server.connections == 1 and len(server.heard) == 1000
    assert [one.json["number"] for one in server.heard] == list(range(1000))
    used = await relay.hub.hears(Used, served=1000)
    assert used.in_flight == 0
    assert len(relay.hub.heard(Used)) < 500


async def test_requests_at_a_time_have_connections_of_their_own_which_are_kept(relay: RunningRelay) -> None:
    together = asyncio.Barrier(8)

    async def script(line: Line, heard: Heard) -> None:
        await together.wait()
        line.answer()

    server = await relay.serving(script)
    clients = [await relay.client() for _ in range(8)]
    for _ in range(3):
        replies = await asyncio.gather(*[client.call(chat()) for client in clients])
        assert [reply.status for reply in replies] == [200] * 8
    assert server.connections == 8


@pytest.mark.parametrize("name", ["small", "gpt-4", "org/small"])
async def test_a_model_is_known_by_its_aliases(relay: RunningRelay, name: str) -> None:
    server = await relay.serving()
    assert (await relay.call(chat(name))).status == 200
    assert server.heard[0].json["model"] == name


async def test_an_unknown_model_is_not_found(relay: RunningRelay) -> None:
    reply = await relay.call(chat("nobody"))
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (404, "model_not_found", "model")


async def test_a_request_without_a_model_is_a_bad_one(relay: RunningRelay) -> None:
    client = await relay.client()
    for body in (b"{}", b"[]", b"nonsense", b'{"model": 5}'):
        reply = await client.call(body)
        assert (reply.status, reply.code) == (400, "bad_request"), body
    assert (await client.call(method="POST")).status == 400
    assert (await client.call(path="/v1/nothing")).status == 404


async def test_what_is_configured_is_stripped_set_and_renamed(relay: RunningRelay) -> None:
    server = await relay.serving(model="renamed")
    await relay.call(chat("renamed", temperature=0.5, seed=1))
    heard = server.heard[0]
    assert heard.json == {**chat("real-name"), "seed": 1, "top_k": 3}
    assert heard.headers["content-length"] == str(len(heard.body))


async def test_the_last_of_repeated_names_counts(relay: RunningRelay) -> None:
    await relay.serving(model="large")
    assert (await relay.call(b'{"model":"small","model":"large"}')).status == 200


async def test_the_model_may_be_in_the_query(relay: RunningRelay) -> None:
    server = await relay.serving()
    renamed = await relay.serving(model="renamed", instance="i2")
    assert (await relay.call(path="/props?model=org%2Fsmall&x=1")).json["target"] == "/props?model=org%2Fsmall&x=1"
    assert (await relay.call(path="/props?x=%26&model=renamed")).json["target"] == "/props?x=%26&model=real-name"
    assert (server.heard[0].method, renamed.heard[0].body) == ("GET", b"")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("size", [10, 3 * 1024 * 1024])
async def test_a_form_may_name_its_model_anywhere(relay: RunningRelay, first: bool, size: int) -> None:
    server = await relay.serving()
    parts = [("file", b"\r\n--boun\0" * (size // 9))]
    parts.insert(0 if first else 1, ("model", b"gpt-4"))
    body = form(*parts)
    reply = await relay.call(body, "/v1/audio/transcriptions", more=FORM)
    assert reply.status == 200
    assert server.heard[0].body == body
    assert server.heard[0].headers["content-type"].endswith(B)


@pytest.mark.parametrize("size", [10, 3 * 1024 * 1024])
async def test_the_model_of_a_form_is_renamed_in_its_place(relay: RunningRelay, size: int) -> None:
    server = await relay.serving(model="renamed")
    file = ("file", b"x" * size)
    assert (
        await relay.call(form(file, ("model", b"renamed"), ("n", b"1")), "/v1/images/edits", more=FORM)
    ).status == 200
    assert server.heard[0].body == form(file, ("model", b"real-name"), ("n", b"1"))


async def test_a_form_without_a_model_or_a_boundary_is_refused(relay: RunningRelay) -> None:
    assert (await relay.call(form(("file", b"x")), "/v1/images/edits", more=FORM)).code == "bad_request"
    without = await relay.call(
        form(("model", b"small")), "/v1/images/edits", more="Content-Type: multipart/form-data\r\n"
    )
    assert without.code == "bad_request"


async def test_a_large_body_waits_in_a_file_and_arrives_whole(relay: RunningRelay) -> None:
    server = await relay.serving()
    body = json.dumps({"image": "A" * 3_500_000, "model": "small"}).encode()
    assert (await relay.call(body)).status == 200
    assert server.heard[0].body == body
    assert relay.core.spool.held == 0


@pytest.mark.parametrize(
    ("path", "model", "target"),
    [
        ("/upstream/small/", "small", "/"),
        ("/upstream/small/a/b%20c?d=e", "small", "/a/b%20c?d=e"),
        ("/upstream/org/small/x", "small", "/x"),
        ("/upstream/org%2Fsmall/x?", "small", "/x"),
        ("/upstream/gpt-4//x", "small", "//x"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_upstream_paths_reach_the_models_own_server(
    relay: RunningRelay, method: str, path: str, model: str, target: str
) -> None:
    server = await relay.serving(model=model)
    reply = await relay.call(b"any bytes" if method == "POST" else None, path, method=method)
    assert reply.json["target"] == target
    assert server.heard[0].method == method


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_models_folder_without_its_slash_is_elsewhere(relay: RunningRelay, method: str) -> None:
    server = await relay.serving()
    client = await relay.client()
    for path, location in (
        ("/upstream/small", "/upstream/small/"),
        ("/upstream/org%2Fsmall?a=b", "/upstream/org%2Fsmall/?a=b"),
        ("/upstream/org/small", "/upstream/org/small/"),
    ):
        reply = await client.call(b"{}" if method == "POST" else None, path, method=method)
        assert (reply.status, reply.headers["location"]) == (308, location)
    assert not server.heard


async def test_upstream_takes_the_longest_name(relay: RunningRelay) -> None:
    models = {**PLAIN.models, "org": PLAIN.models["hidden"]}
    relay.hub.say(Setup(models, PLAIN.keys, 1000, "2"))
    org, small = await relay.serving(model="org", instance="o"), await relay.serving()
    await relay.call(path="/upstream/org/small/x")
    await relay.call(path="/upstream/org/other/x")
    assert [one.target for one in small.heard] == ["/x"] and [one.target for one in org.heard] == ["/other/x"]
    assert (await relay.call(path="/upstream/nobody/x")).code == "model_not_found"


async def test_a_stream_comes_event_by_event_and_its_usage_is_counted(relay: RunningRelay) -> None:
    go_on = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        line.begin_stream()
        line.event('{"n":1,"usage":null}')
        await go_on.wait()
        line.event('{"n":2}')
        line.event(json.dumps({"usage": {"prompt_tokens": 7, "completion_tokens": 9}}))
        line.event("[DONE]")
        line.end_stream()

    await relay.serving(script)
    client = await relay.client()
    client.ask(chat(stream=True))
    head = await client.head()
    assert head.headers["content-type"] == "text/event-stream" and "connection" not in head.headers
    assert await client.chunk() == b'data: {"n":1,"usage":null}\n\n'
    go_on.set()
    rest = [await client.chunk() for _ in range(4)]
    assert rest[0] == b'data: {"n":2}\n\n' and rest[2:] == [b"data: [DONE]\n\n", b""]
    done = await relay.hub.hears(Done)
    assert (done.prompt_tokens, done.completion_tokens) == (7, 9)
    assert (await client.call(chat(), path="/health")).status == 200


@pytest.mark.parametrize("sent", ["at once", "byte by byte"])
@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX-Trailer: z\r\n\r\n", b"hello"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"hello",
        ),
        (
            b"HTTP/1.1 200 \r\nContent-Length: 5\r\nKeep-Alive: timeout=5\r\nConnection: keep-alive\r\n\r\nhello",
            b"hello",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
async def test_answers_of_every_framing_come_through_and_both_connections_go_on(
    relay: RunningRelay, answer: bytes, body: bytes, sent: str
) -> None:
    async def script(line: Line, heard: Heard) -> None:
        if sent == "at once":
            line.send(answer)
            return
        for at in range(len(answer)):
            line.send(answer[at : at + 1])
            await line.writer.drain()
            await asyncio.sleep(0)

    server = await relay.serving(script)
    client = await relay.client()
    for _ in range(2):
        client.ask(chat())
        if b"chunked" in answer:
            head = await client.head()
            raw = await client.reader.readuntil(b"X-Trailer: z\r\n\r\n")
            assert raw == answer.partition(b"\r\n\r\n")[2]
        else:
            head = await client.reply()
            assert head.body == body
        assert "keep-alive" not in head.headers and "connection" not in head.headers and "link" not in head.headers
    assert server.connections == 1


async def test_an_answer_that_ends_with_its_connection_ends_the_callers_too(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end")
        await line.writer.drain()
        line.writer.close()

    await relay.serving(script)
    client = await relay.client()
    reply = await client.call(chat())
    assert reply.headers["connection"] == "close" and reply.body == b"until the end"
    assert (await relay.hub.hears(Done)).status == 200


async def test_a_server_that_closes_after_each_answer_is_connected_to_again(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer(more="Connection: close\r\n")
        await line.writer.drain()
        line.writer.close()

    server = await relay.serving(script)
    client = await relay.client()
    for _ in range(3):
        reply = await client.call(chat())
        assert reply.status == 200 and "connection" not in reply.headers
    assert server.connections == 3


async def test_head_is_answered_without_a_body_and_the_connections_go_on(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(
            b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
            if heard.method == "HEAD"
            else b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        )

    server = await relay.serving(script)
    client = await relay.client()
    for _ in range(2):
        reply = await client.call(path="/x?model=small", method="HEAD")
        assert reply.headers["content-length"] == "500"
        assert (await client.call(chat())).body == b"ok"
    assert server.connections == 1
    for path in ("/health", "/v1/models", "/nothing"):
        assert int((await client.call(path=path, method="HEAD")).headers["content-length"]) > 0
    assert (await client.call(path="/health")).status == 200


async def test_a_caller_of_an_older_http_is_answered_without_chunks(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nplain")
        await line.writer.drain()
        line.writer.close()

    await relay.serving(script)
    client = await relay.client()
    client.send(f"GET /x?model=small HTTP/1.0\r\nx-api-key: {SECRET}\r\n\r\n".encode())
    assert (await client.rest()).endswith(b"\r\n\r\nplain")


async def test_a_request_in_chunks_goes_on_with_its_length(relay: RunningRelay) -> None:
    server = await relay.serving()
    client = await relay.client()
    body = json.dumps(chat()).encode()
    client.ask(method="POST", more="Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n")
    for at in range(0, len(body), 7):
        client.send(b"%x\r\n%b\r\n" % (len(body[at : at + 7]), body[at : at + 7]))
    client.send(b"0\r\nAuthorization: Bearer other\r\nX-Trailer: y\r\n\r\n")
    assert (await client.reply()).status == 200
    heard = server.heard[0]
    assert heard.body == body and heard.headers["content-length"] == str(len(body))
    assert (
        "transfer-encoding" not in heard.headers and "x-trailer" not in heard.headers and "trailer" not in heard.headers
    )
    assert (await client.call(chat())).status == 200


async def test_a_caller_that_expects_to_be_asked_for_its_body_is_asked(relay: RunningRelay) -> None:
    await relay.serving()
    client = await relay.client()
    body = json.dumps(chat()).encode()
    client.ask(method="POST", more=f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n")
    assert (await client.head()).head == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(body)
    assert (await client.reply()).status == 200
    client.ask(method="POST", more="Expect: 100-continue\r\nContent-Length: 999999999\r\n")
    assert (await client.head()).status == 413


async def test_headers_of_the_connection_stay_on_it(relay: RunningRelay) -> None:
    server = await relay.serving()
    more = "Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: x\r\nX-Api-Key: y\r\nX-Yours: 2\r\n"
    assert (await relay.call(chat(), more=more)).status == 200
    assert set(server.heard[0].headers) == {"host", "content-length", "x-yours", "x-request-id"}


async def test_an_offer_of_another_protocol_is_read_over_and_the_body_is_not_lost(relay: RunningRelay) -> None:
    """Java's own client makes this offer with every first request."""
    server = await relay.serving()
    client = await relay.client()
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    body = json.dumps(chat()).encode()
    for number in (1, 2):
        assert (await client.call(chat(), more=offer)).status == 200
        assert server.heard[-1].body == body and len(server.heard) == number
        assert set(server.heard[-1].headers) == {"host", "content-length", "x-request-id"}
    client.ask(method="POST", more=offer + "Transfer-Encoding: chunked\r\n")
    client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert (await client.reply()).status == 200
    assert (await client.call(path="/health", more=offer)).status == 200


async def test_requests_sent_ahead_are_answered_in_their_order(relay: RunningRelay) -> None:
    release = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        if heard.json["number"] == 0:
            await release.wait()
        line.answer(str(heard.json["number"]).encode())

    await relay.serving(script)
    client = await relay.client()
    for number in range(20):
        client.ask(chat(number=number))
        client.ask(path="/health")
    client.ask(chat("nobody"))
    client.send(b"nonsense\r\n\r\n")
    release.set()
    for number in range(20):
        assert (await client.reply()).body == str(number).encode()
        assert (await client.reply()).json == {"status": "ok"}
    assert (await client.reply()).status == 404
    last = await client.reply()
    assert last.status == 400 and last.headers["connection"] == "close"
    assert await client.rest() == b""


async def test_much_sent_ahead_waits_in_the_kernel_and_not_in_the_relay(relay: RunningRelay) -> None:
    release = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        await release.wait()
        line.answer()

    server = await relay.serving(script)
    client = await relay.client()
    for _ in range(400):
        client.ask(chat(padding="x" * 10_000))
    await until(lambda: server.heard and any(caller._held for caller in relay.core.callers))
    (caller,) = relay.core.callers
    assert len(caller._ahead) < 400_000 and len(server.heard) == 1
    release.set()
    for _ in range(400):
        assert (await client.reply()).status == 200


async def test_a_caller_that_says_close_is_closed_after_its_answer(relay: RunningRelay) -> None:
    await relay.serving()
    client = await relay.client()
    reply = await client.call(chat(), more="Connection: close\r\n")
    assert reply.status == 200 and reply.headers["connection"] == "close"
    assert await client.rest() == b""


async def test_proxies_are_asked_not_to_buffer_a_stream_and_only_a_stream(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        if not heard.json["stream"]:
            line.answer()
            return
        buffering = "X-Accel-Buffering: yes\r\n" if heard.json.get("buffered") else ""
        more = f"Content-Type: text/event-stream\r\n{buffering}Transfer-Encoding: chunked\r\n"
        line.send(f"HTTP/1.1 200 OK\r\n{more}\r\n".encode())
        line.event("one")
        line.end_stream()

    await relay.serving(script)
    assert "x-accel-buffering" not in (await relay.call(chat())).headers
    for buffered in (False, True):
        reply = await relay.call(chat(stream=True, buffered=buffered))
        assert reply.headers["x-accel-buffering"] == "no" and reply.body == b"data: one\n\n"
        assert reply.head.lower().count(b"x-accel-buffering") == 1


# Pages


async def test_health_is_for_everybody(relay: RunningRelay) -> None:
    assert (await relay.call(path="/health", secret="wrong")).json == {"status": "ok"}


async def test_models_are_listed_with_whether_they_are_loaded(relay: RunningRelay) -> None:
    await relay.serving()
    listed = (await relay.call(path="/v1/models")).json
    assert listed["object"] == "list" and [one["id"] for one in listed["data"]] == [
        "small",
        "large",
        "renamed",
        "draining",
    ]
    small, large = listed["data"][:2]
    assert small["description"] == "a small one" and small["object"] == "model"
    assert (small["status"], large["status"]) == ({"value": "loaded"}, {"value": "unloaded"})
    relay.hub.say(Open("i9", "large", "127.0.0.1", 1, 0))
    await relay.settled()
    assert (await relay.call(path="/v1/models")).json["data"][1]["status"] == {"value": "loaded"}


async def test_one_model_is_shown_by_any_of_its_names(relay: RunningRelay) -> None:
    assert (await relay.call(path="/v1/models/org/small")).json["id"] == "small"
    assert (await relay.call(path="/v1/models/org%2Fsmall")).json["id"] == "small"
    assert (await relay.call(path="/v1/models/nobody")).code == "model_not_found"
    assert (await relay.call(chat(), path="/v1/models")).status == 405


async def test_each_entry_of_the_list_names_when_its_model_was_created_and_keeps_that_time(relay: RunningRelay) -> None:
    before = (await relay.call(path="/v1/models")).json["data"]
    assert all(isinstance(one["created"], int) and 0 < one["created"] <= time.time() for one in before)
    await relay.serving()
    relay.hub.say(PLAIN)
    await relay.settled()
    after = (await relay.call(path="/v1/models")).json["data"]
    assert [one["created"] for one in after] == [one["created"] for one in before]
    assert (await relay.call(path="/v1/models/small")).json["created"] == before[0]["created"]


async def test_pages_of_the_hub_are_asked_for_and_answered(relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask({"force": True}, "/api/models/small/unload?x=1", more="Accept: text/plain\r\n")
    asked = await relay.hub.hears(Asked)
    assert (asked.method, asked.path, asked.query, asked.body) == (
        "POST",
        "/api/models/small/unload",
        "x=1",
        b'{"force": true}',
    )
    assert (asked.user, asked.role, asked.headers) == ("ann", "user", [("Accept", "text/plain")])
    relay.hub.say(Answer(asked.request, 202, [("Content-Type", "text/plain")], b"soon"))
    reply = await client.reply()
    assert (reply.status, reply.body, reply.headers["content-type"]) == (202, b"soon", "text/plain")
    for path in ("/running", "/unload", "/metrics", "/logs/stream/small", "/"):
        client.ask(path=path)
        asked = await relay.hub.hears(Asked, path=path)
        relay.hub.say(Answer(asked.request, 200))
        assert (await client.reply()).status == 200


async def test_a_page_may_come_piece_by_piece_until_its_caller_hangs_up(relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask(path="/logs/stream/small")
    asked = await relay.hub.hears(Asked)
    relay.hub.say(Answer(asked.request, 200, [], b"one\n", True))
    assert (await client.head()).status == 200 and await client.chunk() == b"one\n"
    relay.hub.say(Answer(asked.request, 0, [], b"two\n", True))
    assert await client.chunk() == b"two\n"
    client.hang_up()
    assert (await relay.hub.hears(Cancelled)).request == asked.request
    relay.hub.say(Answer(asked.request, 0, [], b"three\n"))
    await relay.settled()
    assert not relay.core.requests


async def test_a_page_that_comes_in_pieces_ends_and_the_connection_goes_on(relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask(path="/logs")
    asked = await relay.hub.hears(Asked)
    relay.hub.say(Answer(asked.request, 200, [], b"", True), Answer(asked.request, 0, [], b"all"))
    assert (await client.reply()).body == b"all"
    assert (await client.call(path="/health")).status == 200


async def test_a_new_configuration_counts_at_once_and_what_is_under_way_goes_on(relay: RunningRelay) -> None:
    release = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        await release.wait()
        line.answer(b"old")

    relay.hub.say(msgspec.structs.replace(PLAIN, keys=[key(), key("stays")]))
    await relay.serving(script)
    client = await relay.client()
    client.ask(chat(), secret="stays")
    await relay.hub.hears(Used, in_flight=1)
    relay.hub.say(Setup({"other": PLAIN.models["small"]}, [key("stays"), key("another")], 1000, "2"))
    await relay.settled()
    assert (await relay.call(chat())).status == 401
    assert (await relay.call(chat(), secret="another")).status == 404
    release.set()
    assert (await client.reply()).body == b"old"


async def test_a_key_may_have_so_many_requests_at_a_time(relay: RunningRelay) -> None:
    release = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        await release.wait()
        line.answer()

    relay.hub.say(Setup(PLAIN.models, [key(), key("few", in_flight=2)], 10000))
    await relay.serving(script)
    clients: list[Any] = [await relay.client() for _ in range(2)]
    for client in clients:
        client.ask(chat(), secret="few")
    await relay.hub.hears(Used, in_flight=2)
    reply = await relay.call(chat(), secret="few")
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (429, "too_many_requests", "1")
    release.set()
    assert [(await client.reply()).status for client in clients] == [200, 200]
    assert (await relay.call(chat(), secret="few")).status == 200
