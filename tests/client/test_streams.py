"""Logs that are followed and the feed, through hubs that go away."""

import queue
import threading
from typing import Any

import pytest
from tests.client.scripted_hub import ScriptedHub, Step, drop, problem, reply, stream

from ostler.client.errors import HubUnreachable, NotFound
from ostler.client.http import Hub
from ostler.client.streams import server_sent_events
from ostler.client.transport import Patience
from ostler.client.watch import Watch

QUICK = Patience(tries=2, first_pause_s=0.01, growth=1.0, total_s=5.0, outage_s=5.0)


def job(state: str, *attempts: str) -> Step:
    ended = state not in ("pending", "assigned", "running")
    listed = [
        {"attempt": name, "worker": "w1", "finished_at": "then" if ended or name != attempts[-1] else None}
        for name in attempts
    ]
    return reply({"id": "j1", "state": state, "attempts": listed})


def follow(*steps: Step, offset: int = 0, attempt: str | None = None) -> tuple[bytes, list[str]]:
    with ScriptedHub(*steps) as scripted, Hub(scripted.url, "t", patience=QUICK) as hub:
        told = b"".join(hub.logs("j1", follow=True, offset=offset, attempt=attempt))
        return told, [path.removeprefix("/v1/jobs/j1") for path in scripted.paths]


def test_a_log_is_read_as_it_is() -> None:
    with ScriptedHub(stream(b"one\n", b"two\n")) as scripted, Hub(scripted.url) as hub:
        assert b"".join(hub.logs("j1", offset=3)) == b"one\ntwo\n"
    assert scripted.paths == ["/v1/jobs/j1/logs?offset=3"]


def test_following_ends_with_the_job() -> None:
    told, paths = follow(job("running", "a"), stream(b"one\n"), job("succeeded", "a"), stream(), job("succeeded", "a"))
    assert told == b"one\n"
    assert paths[1] == "/logs?follow=1&attempt=a"


def test_following_goes_on_at_the_byte_where_the_connection_broke() -> None:
    told, paths = follow(
        job("running", "a"),
        stream(b"one\n", b"tw", cut=True),
        drop,
        stream(b"o\nthree\n"),
        job("succeeded", "a"),
        stream(),
        job("succeeded", "a"),
    )
    assert told == b"one\ntwo\nthree\n"
    assert paths[3] == "/logs?follow=1&offset=6&attempt=a"


def test_a_hub_that_stops_politely_is_not_taken_for_the_end() -> None:
    told, paths = follow(
        job("running", "a"),
        stream(b"one\n"),
        job("running", "a"),
        stream(b"two\n"),
        job("succeeded", "a"),
        stream(b"three\n"),
        job("succeeded", "a"),
        stream(),
        job("succeeded", "a"),
    )
    assert told == b"one\ntwo\nthree\n"
    assert [path for path in paths if path.startswith("/logs")] == [
        "/logs?follow=1&attempt=a",
        "/logs?follow=1&offset=4&attempt=a",
        "/logs?follow=1&offset=8&attempt=a",
        "/logs?follow=1&offset=14&attempt=a",
    ]


def test_the_next_attempts_output_follows_from_its_own_first_byte() -> None:
    told, paths = follow(
        job("running", "a"),
        stream(b"first\n"),
        job("running", "a", "b"),
        stream(),
        job("running", "a", "b"),
        stream(b"second\n"),
        job("succeeded", "a", "b"),
        stream(),
        job("succeeded", "a", "b"),
    )
    assert told == b"first\n[ostler: attempt 2 on w1]\nsecond\n"
    assert paths[5] == "/logs?follow=1&attempt=b"


def test_following_waits_for_the_first_attempt() -> None:
    told, paths = follow(
        job("pending"), job("running", "a"), stream(b"x"), job("failed", "a"), stream(), job("failed", "a")
    )
    assert told == b"x"
    assert paths[:2] == ["", "?wait=0.1"]


def test_following_one_attempt_ends_with_it() -> None:
    told, _ = follow(
        job("running", "a", "b"),
        stream(b"old"),
        job("running", "a", "b"),
        stream(),
        job("running", "a", "b"),
        attempt="a",
    )
    assert told == b"old"


def test_following_gives_up_when_the_hub_does_not_come_back() -> None:
    impatient = Patience(tries=1, first_pause_s=0.01, growth=1.0, outage_s=0.05)
    with (
        ScriptedHub(job("running", "a"), stream(b"x", cut=True), drop) as scripted,
        Hub(scripted.url, patience=impatient) as hub,
        pytest.raises(HubUnreachable),
    ):
        list(hub.logs("j1", follow=True))


def test_the_tail_of_a_log_is_its_last_lines() -> None:
    lines = b"".join(b"line %d\n" % number for number in range(5000))
    with ScriptedHub(stream(lines[:30_000], lines[30_000:])) as scripted, Hub(scripted.url) as hub:
        tail = hub.log_tail("j1").splitlines()
    assert tail == [f"line {number}" for number in range(4970, 5000)]


# The feed


def sse(*events: tuple[int, str, dict[str, Any]]) -> bytes:
    import msgspec

    return b"".join(
        f"id: {seq}\nevent: {kind}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n" for seq, kind, data in events
    )


def test_events_are_read_however_they_are_cut() -> None:
    whole = (
        b": connected\n\n" + sse((1, "job", {"subject": "a"}), (2, "worker", {"subject": "w"})) + b": still here\n\n"
    )
    wanted = [{"seq": 1, "kind": "job", "subject": "a"}, {"seq": 2, "kind": "worker", "subject": "w"}]
    for size in (1, 2, 7, len(whole)):
        assert list(server_sent_events(whole[at : at + size] for at in range(0, len(whole), size))) == wanted
    assert list(server_sent_events([whole.replace(b"\n", b"\r\n")])) == wanted


def test_the_feed_goes_on_after_the_last_event_that_was_seen() -> None:
    steps = [
        stream(sse((7, "job", {"subject": "a"})), cut=True, content_type="text/event-stream"),
        drop,
        stream(sse((8, "job", {"subject": "b"}), (9, "job", {"subject": "c"})), content_type="text/event-stream"),
    ]
    with ScriptedHub(*steps) as scripted, Hub(scripted.url, patience=QUICK) as hub:
        feed = hub.events(after=6)
        assert [next(feed)["subject"] for _ in range(3)] == ["a", "b", "c"]
    assert [
        request.headers.get("Last-Event-Id") or request.headers["Last-Event-ID"] for request in scripted.requests
    ] == [
        "6",
        "7",
        "7",
    ]


class Years:
    """A clock by which a long time passes whenever it is looked at."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 1e6
        return self._now

    def sleep(self, _: float) -> None:
        pass


@pytest.fixture
def years(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostler.client.streams.time", Years())


ALIVE = stream(b": still here\n\n", cut=True, content_type="text/event-stream")


@pytest.mark.usefixtures("years")
def test_breaks_of_the_feed_that_lie_far_apart_are_no_long_outage() -> None:
    event = stream(sse((7, "job", {"subject": "a"})), content_type="text/event-stream")
    with ScriptedHub(ALIVE, ALIVE, ALIVE, event) as scripted, Hub(scripted.url, patience=QUICK) as hub:
        assert next(hub.events())["subject"] == "a"


@pytest.mark.usefixtures("years")
def test_a_watch_endures_any_number_of_breaks_that_lie_far_apart() -> None:
    feeds = [ALIVE, ALIVE, ALIVE]

    def answer(handler: Any) -> None:
        if handler.path == "/v1/events":
            (feeds.pop() if feeds else stream(sse((1, "job", {"subject": "j1", "state": "failed"}))))(handler)
        else:
            reply({"id": "j1", "state": "running" if feeds else "failed"})(handler)

    with ScriptedHub(answer) as scripted, Hub(scripted.url, patience=QUICK) as hub:
        watch = Watch(hub)
        assert watch.future("j1").result(60)["state"] == "failed"
        watch.close()


class SilentFeed:
    """Tells what it is told to, and stays open. `job` answers all other requests."""

    def __init__(self, job: Step) -> None:
        self._job = job
        self._told: queue.Queue[bytes] = queue.Queue()
        self.tell(b": connected\n\n")

    def tell(self, chunk: bytes) -> None:
        self._told.put(chunk)

    def __call__(self, handler: Any) -> None:
        if handler.path != "/v1/events":
            self._job(handler)
            return
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while chunk := self._told.get():
            handler.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")


def test_a_watch_whose_question_was_not_answered_asks_again_while_the_feed_lives() -> None:
    answers = iter([job("running"), *[drop] * QUICK.tries, job("succeeded")])
    asked = threading.Semaphore(0)

    def answer(handler: Any) -> None:
        next(answers)(handler)
        asked.release()

    feed = SilentFeed(answer)
    with ScriptedHub(feed) as scripted, Hub(scripted.url, patience=QUICK) as hub:
        watch = Watch(hub)
        end = watch.future("j1")
        assert asked.acquire(timeout=60)
        feed.tell(sse((1, "job", {"subject": "j1", "state": "succeeded"})))
        for _ in range(QUICK.tries):
            assert asked.acquire(timeout=60)
        feed.tell(b": still here\n\n")
        assert end.result(60)["state"] == "succeeded"
        feed.tell(b"")
        watch.close()


def test_a_job_that_a_hub_has_lost_is_not_waited_for() -> None:
    feed = SilentFeed(problem(404, "no such job"))
    with ScriptedHub(feed) as scripted, Hub(scripted.url, patience=QUICK) as hub:
        watch = Watch(hub)
        end = watch.future("j1")
        watch.look("j1")
        assert not end.done(), "it may be on its way to the hub"
        watch.submitted("j1")
        watch.look("j1")
        with pytest.raises(NotFound, match="no such job"):
            end.result(0)
        feed.tell(b"")
        watch.close()


def test_a_callback_that_would_end_the_watch_ends_nothing() -> None:
    may_end = threading.Event()

    def answer(handler: Any) -> None:
        may_end.wait(60)
        job("succeeded")(handler)

    def leave(_: Any) -> None:
        raise SystemExit(3)

    with ScriptedHub(SilentFeed(answer)) as scripted, Hub(scripted.url, patience=QUICK) as hub:
        watch = Watch(hub)
        first, second = watch.future("j1"), watch.future("j1")
        first.add_done_callback(leave)
        may_end.set()
        assert (first.result(60)["state"], second.result(60)["state"]) == ("succeeded", "succeeded")
        watch.close()


def test_a_watch_whose_thread_is_gone_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedHub(SilentFeed(job("succeeded"))) as scripted, Hub(scripted.url, patience=QUICK) as hub:
        watch = Watch(hub)
        with monkeypatch.context() as patched:
            patched.setattr(watch, "_run", lambda: None)
            first = watch.future("a")
            assert watch._thread is not None
            watch._thread.join()
        assert (watch.future("b").result(60)["state"], first.result(60)["state"]) == ("succeeded", "succeeded")
        watch.close()


def test_a_watch_tells_an_end_that_the_feed_brings_and_one_that_came_before_it() -> None:
    ended = sse((1, "job", {"subject": "late", "state": "failed"}))
    may_end = threading.Event()

    def answer(handler: Any) -> None:
        if handler.path == "/v1/events":
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            handler.wfile.write(b"4\r\n: ok\r\n")
            may_end.wait(60)
            handler.wfile.write(f"{len(ended):x}\r\n".encode() + ended + b"\r\n")
        elif handler.path == "/v1/jobs/early":
            reply({"id": "early", "state": "succeeded"})(handler)
        elif may_end.is_set():
            reply({"id": "late", "state": "failed"})(handler)
        else:
            reply({"id": "late", "state": "running"})(handler)

    with ScriptedHub(answer) as scripted, Hub(scripted.url, patience=QUICK) as hub:
        watch = Watch(hub)
        early, late = watch.future("early"), watch.future("late")
        watch.look("early")
        assert early.result(60)["state"] == "succeeded"
        assert not late.done()
        may_end.set()
        assert late.result(60)["state"] == "failed"
        watch.close()


def test_a_watch_that_is_closed_fails_what_still_waits() -> None:
    with ScriptedHub(problem(403, "no feed for you")) as scripted, Hub(scripted.url, patience=QUICK) as hub:
        watch = Watch(hub)
        watch.close()
        with pytest.raises(RuntimeError, match="closed"):
            watch.future("j1")


def test_a_watch_without_a_feed_looks_by_itself() -> None:
    def answer(handler: Any) -> None:
        if handler.path == "/v1/events":
            problem(403, "no feed for you")(handler)
        else:
            reply({"id": "j1", "state": "succeeded"})(handler)

    with ScriptedHub(answer) as scripted, Hub(scripted.url, patience=QUICK) as hub:
        watch = Watch(hub)
        assert watch.future("j1").result(60)["state"] == "succeeded"
        watch.close()
