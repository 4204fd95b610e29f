"""Logs on their way to the hub."""

import re
from pathlib import Path

import pytest
from tests.worker.conftest import RunningWorker, eventually, running_worker
from tests.worker.scripted_hub import ScriptedHub

from ostler.worker import logs
from ostler.worker.logs import BEHIND, END_PART, PIECE, Part, last_parts, next_part
from ostler.worker.trimming import KEEP_HEAD


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


def test_of_a_log_that_was_read_long_ago_only_the_end_is_sent_for_the_middle_may_be_gone() -> None:
    size = 1000 * PIECE
    parts = last_parts(KEEP_HEAD + 5, size)
    assert (parts[0].start, parts[0].gap) == (size - END_PART, size - END_PART - KEEP_HEAD - 5)
    assert sum(part.length for part in parts) == END_PART
    nearly = last_parts(KEEP_HEAD - 5, size)
    assert nearly[0] == Part(KEEP_HEAD - 5, 5)
    assert nearly[1].gap == size - END_PART - KEEP_HEAD


@pytest.mark.parametrize(
    ("at", "size", "part"),
    [
        (0, 10, Part(0, 10)),
        (5, 3 * PIECE, Part(5, PIECE)),
        (7, 7 + BEHIND, Part(7, PIECE)),
        (0, 100 * BEHIND, Part(0, PIECE)),
        (END_PART - 1, 100 * BEHIND, Part(END_PART - 1, PIECE)),
        (END_PART, 100 * BEHIND, Part(100 * BEHIND - PIECE, PIECE, 100 * BEHIND - PIECE - END_PART)),
    ],
)
def test_a_reader_gets_the_beginning_in_order_and_then_stays_near_the_end(at: int, size: int, part: Part) -> None:
    assert next_part(at, size) == part


async def test_a_log_is_with_the_hub_before_the_result_is(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.assign("a1", "sh", "-c", "echo out; echo err >&2")
    await hub.next("job_result")
    assert hub.logs["job-a1", "a1"] == b"out\nerr\n"
    assert hub.requests == ["/v1/tasks/job-a1/logs?attempt=a1&offset=0&final=1 8"]


async def test_a_log_is_followed_as_it_grows(hub: ScriptedHub, worker: RunningWorker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    await hub.assign("a1", "sh", "-c", f"echo one; while [ ! -e {gate} ]; do sleep 0.02; done; echo two")
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=True)
    await hub.until(lambda: hub.logs["job-a1", "a1"] == b"one\n")
    gate.touch()
    await hub.next("job_result")
    assert hub.logs["job-a1", "a1"] == b"one\ntwo\n"
    assert hub.finals == [("job-a1", "a1")]


async def test_whoever_follows_a_log_hears_of_its_end_before_the_result_though_there_was_nothing_to_say(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    await hub.assign("a1", "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done")
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=True)
    await hub.send("job_cancel", task_id="ghost", attempt="gone", reason="", grace_seconds=1)
    await hub.next("job_result")  # of the ghost: the worker has read the request before it
    gate.touch()
    await hub.next("job_result")
    assert hub.finals == [("job-a1", "a1")]


async def test_without_following_the_hub_gets_what_is_there_now(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    await hub.assign("a1", "sh", "-c", f"echo one; touch {started}; sleep 600")
    await eventually(started.exists)
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=False)
    await hub.until(lambda: hub.logs["job-a1", "a1"] == b"one\n")
    assert hub.finals == []


async def test_a_hub_that_has_more_or_less_than_thought_is_believed(hub: ScriptedHub, worker: RunningWorker) -> None:
    hub.logs["job-a1", "a1"] = b"on"
    await hub.assign("a1", "sh", "-c", "echo one")
    await hub.next("job_result")
    assert hub.logs["job-a1", "a1"] == b"one\n"


async def test_the_log_of_a_task_long_ended_can_be_asked_for(hub: ScriptedHub, worker: RunningWorker) -> None:
    hub.log_status = 404
    await hub.assign("a1", "sh", "-c", "echo one")
    await hub.next("job_result")
    hub.log_status = 0
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=True)
    await hub.until(lambda: hub.finals == [("job-a1", "a1")])
    assert hub.logs["job-a1", "a1"] == b"one\n"


async def test_who_asks_for_a_log_that_is_just_being_finished_does_not_get_it_twice(
    hub: ScriptedHub, worker: RunningWorker
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
    hub: ScriptedHub, worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "END_S", 0.2)
    monkeypatch.setattr("ostler.worker.endings.COLLECT_TRIES", 1)
    hub.log_gate.clear()
    await hub.assign("a1", "echo", "one")
    assert (await hub.next("job_result"))["state"] == "succeeded"
    hub.log_gate.set()


async def test_a_hub_that_stood_still_while_a_task_ended_gets_its_log_when_it_goes_on(
    hub: ScriptedHub, worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "END_S", 0.2)
    hub.log_gate.clear()
    await hub.assign("a1", "echo", "one")
    await hub.until(lambda: len(hub.requests) == 2)  # the first was given up, and nothing of it taken
    hub.log_gate.set()
    assert (await hub.next("job_result"))["state"] == "succeeded"
    assert hub.logs["job-a1", "a1"] == b"one\n"


async def test_a_log_of_which_every_try_brings_a_part_is_brought_whole(
    hub: ScriptedHub, worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostler.worker.endings.COLLECT_TRIES", 2)
    hub.log_cut = 30_000
    await hub.assign("a1", "sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; echo; echo end")
    assert (await hub.next("job_result"))["state"] == "succeeded"
    assert hub.logs["job-a1", "a1"] == b"x" * 100_000 + b"\nend\n"


async def test_a_log_that_is_nowhere_is_told_to_be_at_its_end(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.send("log_request", task_id="job", attempt="never", offset=0, follow=True)
    await hub.until(lambda: hub.finals == [("job", "never")])


async def test_a_long_log_without_a_reader_is_cut_in_the_middle(
    hub: ScriptedHub, worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
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
    async with running_worker(hub.url, tmp_path / "w1"):
        await hub.next("register")
        await hub.assign("a1", "echo", "one")
        assert (await hub.next("job_result"))["state"] == "succeeded"


async def test_a_reader_of_a_flood_is_brought_to_its_end_and_told_what_was_left_out(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PIECE", 1000)
    monkeypatch.setattr(logs, "END_PART", 2000)
    monkeypatch.setattr(logs, "BEHIND", 10_000)
    printed, gate = tmp_path / "printed", tmp_path / "gate"
    waits = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    await hub.assign("a1", "sh", "-c", f"seq 1 20000; touch {printed}; {waits}; echo end")
    await eventually(printed.exists)
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=True)
    await hub.until(lambda: hub.logs["job-a1", "a1"].endswith(b"\n20000\n"))
    whole = "".join(f"{n}\n" for n in range(1, 20_001)).encode()
    assert _with_gaps_filled(hub.logs["job-a1", "a1"], whole) == whole
    assert len(hub.logs["job-a1", "a1"]) < 5000
    gate.touch()
    await hub.next("job_result")
    assert hub.logs["job-a1", "a1"].endswith(b"\n20000\nend\n")


def _with_gaps_filled(copy: bytes, whole: bytes) -> bytes:
    """What the task printed, if the copy tells the truth about what it lacks."""
    found = b""
    for number, part in enumerate(re.split(rb"\[(\d+) bytes left out\]", copy)):
        found += part if number % 2 == 0 else whole[len(found) : len(found) + int(part)]
    return found


async def test_a_hub_that_takes_no_more_is_not_asked_again_and_gets_the_end_all_the_same(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOOK_S", 0.0)
    gate = tmp_path / "gate"
    await hub.assign("a1", "sh", "-c", f"echo one; while [ ! -e {gate} ]; do sleep 0.02; done; echo two")
    hub.log_status = 413
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=0, follow=True)
    await hub.until(lambda: hub.requests)
    for ghost in ("g1", "g2", "g3"):  # each takes as long as another try would
        await hub.send("job_cancel", task_id="ghost", attempt=ghost, reason="", grace_seconds=1)
        await hub.next("job_result")
    assert len(hub.requests) == 1
    hub.log_status = 0
    gate.touch()
    await hub.next("job_result")
    assert hub.logs["job-a1", "a1"] == b"one\ntwo\n"


async def test_a_request_says_how_far_a_copy_with_gaps_reaches(hub: ScriptedHub, worker: RunningWorker) -> None:
    hub.log_status = 404
    await hub.assign("a1", "sh", "-c", "echo onetwo")
    await hub.next("job_result")
    hub.log_status = 0
    hub.logs["job-a1", "a1"] = b"[3 bytes left out]"
    await hub.send("log_request", task_id="job-a1", attempt="a1", offset=18, reached=3, follow=True)
    await hub.until(lambda: hub.finals == [("job-a1", "a1")])
    assert hub.logs["job-a1", "a1"] == b"[3 bytes left out]two\n"
