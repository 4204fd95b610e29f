"""Logs on their way to the hub."""

from pathlib import Path

import pytest
from tests.worker.conftest import Worker, eventually, working
from tests.worker.scripted_hub import ScriptedHub

from ostler.worker import logs
from ostler.worker.logs import END_PART, PIECE, Part, last_parts


@pytest.mark.parametrize(
    ("have", "size", "parts"),
    [
        (0, 10, [Part(0, 10)]),
        (4, 10, [Part(4, 6)]),
        (10, 10, [Part(10, 0)]),
        (0, PIECE + 1, [Part(0, PIECE), Part(PIECE, 1)]),
    ],
)
def test_a_short_log_is_sent_whole(have: int, size: int, parts: list[Part]) -> None:
    assert last_parts(have, size) == parts


def test_of_a_long_log_the_beginning_and_the_end_are_sent_and_the_gap_is_told() -> None:
    size = 100 * PIECE
    parts = last_parts(3, size)
    assert [part.gap for part in parts] == [0, 0, 0, 0, size - 2 * END_PART - 3, 0, 0, 0]
    assert sum(part.length for part in parts) == 2 * END_PART
    assert (parts[0].start, parts[4].start) == (3, size - END_PART)


async def test_a_log_is_with_the_hub_before_the_result_is(hub: ScriptedHub, worker: Worker) -> None:
    await hub.assign("a1", "sh", "-c", "echo out; echo err >&2")
    await hub.next("job_result")
    assert hub.logs["job-a1", "a1"] == b"out\nerr\n"
    assert hub.requests == ["/v1/tasks/job-a1/logs?attempt=a1&offset=0&final=1 8"]


async def test_a_log_is_followed_as_it_grows(hub: ScriptedHub, worker: Worker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    await hub.assign("a1", "sh", "-c", f"echo one; while [ ! -e {gate} ]; do sleep 0.02; done; echo two")
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=True)
    await hub.until(lambda: hub.logs["job-a1", "a1"] == b"one\n")
    gate.touch()
    await hub.next("job_result")
    assert hub.logs["job-a1", "a1"] == b"one\ntwo\n"
    assert hub.finals == [("job-a1", "a1")]


async def test_without_following_the_hub_gets_what_is_there_now(
    hub: ScriptedHub, worker: Worker, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    await hub.assign("a1", "sh", "-c", f"echo one; touch {started}; sleep 600")
    await eventually(started.exists)
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=False)
    await hub.until(lambda: hub.logs["job-a1", "a1"] == b"one\n")
    assert hub.finals == []


async def test_a_hub_that_has_more_or_less_than_thought_is_believed(hub: ScriptedHub, worker: Worker) -> None:
    hub.logs["job-a1", "a1"] = b"on"
    await hub.assign("a1", "sh", "-c", "echo one")
    await hub.next("job_result")
    assert hub.logs["job-a1", "a1"] == b"one\n"


async def test_the_log_of_a_task_long_ended_can_be_asked_for(hub: ScriptedHub, worker: Worker) -> None:
    hub.log_status = 404
    await hub.assign("a1", "sh", "-c", "echo one")
    await hub.next("job_result")
    hub.log_status = 0
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=True)
    await hub.until(lambda: hub.finals == [("job-a1", "a1")])
    assert hub.logs["job-a1", "a1"] == b"one\n"


async def test_who_asks_for_a_log_that_is_just_being_finished_does_not_get_it_twice(
    hub: ScriptedHub, worker: Worker
) -> None:
    hub.log_gate.clear()
    await hub.assign("a1", "echo", "one")
    await hub.until(lambda: hub.requests)
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=True)
    await hub.send("job_cancel", task_id="ghost", attempt="gone", reason="", grace_seconds=1)
    await hub.next("job_result")  # of the ghost: the worker has read the request before it
    hub.log_gate.set()
    await hub.next("job_result")
    assert len(hub.requests) == 1
    assert hub.logs["job-a1", "a1"] == b"one\n"


async def test_a_result_does_not_wait_longer_than_it_may_for_a_slow_hub(
    hub: ScriptedHub, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "END_S", 0.2)
    hub.log_gate.clear()
    await hub.assign("a1", "echo", "one")
    assert (await hub.next("job_result"))["state"] == "succeeded"
    hub.log_gate.set()


async def test_a_log_that_is_nowhere_is_told_to_be_at_its_end(hub: ScriptedHub, worker: Worker) -> None:
    await hub.send("log_request", task_id="job", attempt="never", offset=0, follow=True)
    await hub.until(lambda: hub.finals == [("job", "never")])


async def test_a_long_log_without_a_reader_is_cut_in_the_middle(
    hub: ScriptedHub, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PIECE", 1000)
    monkeypatch.setattr(logs, "END_PART", 4000)
    await hub.assign("a1", "sh", "-c", "seq 1 5000")
    await hub.next("job_result")
    whole = "".join(f"{n}\n" for n in range(1, 5001)).encode()
    middle = f"[{len(whole) - 8000} bytes left out]".encode()
    assert hub.logs["job-a1", "a1"] == whole[:4000] + middle + whole[-4000:]
    assert len(hub.requests) == 8


async def test_a_hub_that_takes_no_log_gets_the_result_all_the_same(
    hub: ScriptedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.log_status = 503
    monkeypatch.setattr("ostler.worker.endings.COLLECT_TRIES", 2)
    async with working(hub.url, tmp_path / "w1"):
        await hub.next("register")
        await hub.assign("a1", "echo", "one")
        assert (await hub.next("job_result"))["state"] == "succeeded"
