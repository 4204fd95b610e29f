"""What a job takes and tells over time, from its worker's heartbeats, its log and its artifact."""

import io
import tarfile
import tracemalloc
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

from ostler.archive.curves import MOST_POINTS as MOST_TOLD
from ostler.archive.curves import curves_in, curves_of
from ostler.domain.worker import ActiveTask
from ostler.hub import samples
from ostler.hub.samples import Samples


async def test_heartbeats_become_curves_of_what_an_attempt_takes(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    held = await worker.take(await api.submit(name="training"))
    assert (await api.get(f"/v1/jobs/{held.task_id}/curves"))["taken"] is None
    for cpu_s, memory_mib in ((1.0, 100), (21.0, 300)):
        await worker.beat([{**held.line(), "cpu_s": cpu_s, "memory_mib": memory_mib, "vram_mib": 5}])
        await hub.pass_time(10.0)
    found = await api.get(f"/v1/jobs/{held.task_id}/curves")
    assert found["attempt"] == held.attempt
    assert found["taken"]["memory_mib"] == [100, 300] and found["taken"]["vram_mib"] == [5, 5]
    assert found["taken"]["cores"] == [pytest.approx(2.0, rel=0.1)] * 2
    assert len(found["taken"]["at"]) == 2


async def test_what_a_task_prints_as_json_becomes_curves_along_its_steps(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    held = await worker.take(await api.submit(name="training"))
    log = b'begin\n{"epoch": 1, "loss": 0.5}\n{"epoch": 2, "loss": 0.25, "best": true}\n{"epoch": 3'
    path = f"/v1/tasks/{held.task_id}/logs?attempt={held.attempt}&offset=0"
    headers = {"Authorization": f"Bearer {hub.join_token}"}
    assert (await api.call("POST", path, data=log, headers=headers)).status == 200
    found = await api.get(f"/v1/jobs/{held.task_id}/curves")
    assert found["metrics"] == {"along": "epoch", "series": {"loss": [[1, 0.5], [2, 0.25]]}}


async def test_an_array_and_others_jobs_have_no_curves_to_see(hub: RunningHub, api: Api) -> None:
    job = await api.submit(array=2)
    assert f"{job}.0" in (await api.get(f"/v1/jobs/{job}/curves", status=422))["detail"]
    assert (await api.get(f"/v1/jobs/{job}.0/curves")) == {
        "attempt": None,
        "taken": None,
        "metrics": {"along": "line", "series": {}},
    }
    await api.get(f"/v1/jobs/{job}.0/curves?attempt=other", status=404)
    ann = await hub.user("ann")
    await ann.get(f"/v1/jobs/{job}.0/curves", status=404)


def test_curves_without_steps_go_along_their_lines_and_are_thinned_with_the_last_kept() -> None:
    lines = [b'{"loss": %d}' % number for number in range(1, 2002)]
    curves = curves_in([*lines, b"no json", b"[1]", b'{"text": "x"}'])
    points = curves.points["loss"]
    assert curves.along == "" and len(points) <= MOST_TOLD
    assert points[-1] == (2001.0, 2001.0)
    assert points == sorted(points)


def test_steps_that_begin_anew_are_drawn_in_their_order() -> None:
    lines = [b'{"step": %d, "loss": %d}' % (step, number) for number, step in enumerate((1, 2, 3, 2, 3, 4))]
    assert curves_in(lines).points["loss"] == [(1, 0), (2, 1), (2, 3), (3, 2), (3, 4), (4, 5)]


def test_millions_of_short_lines_take_little_more_room_than_they_have() -> None:
    content = b'{"a":1}\n' * 50_000 + b"12\n" * 50_000
    bundle = io.BytesIO()
    with tarfile.open(fileobj=bundle, mode="w") as tar:
        entry = tarfile.TarInfo("metrics.jsonl")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    bundle.seek(0)
    tracemalloc.start()
    try:
        found = curves_of(bundle)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.points["a"][-1] == (50_000, 1) and most < 8 * len(content)


def line(attempt: str, memory_mib: int = 1, **more: Any) -> ActiveTask:
    return ActiveTask(task_id="t", attempt=attempt, memory_mib=memory_mib, **more)


def test_a_series_stays_within_its_bound_over_all_of_its_time() -> None:
    known = Samples()
    for at in range(0, 100_000, 10):
        known.heard([line("a", at + 1)], float(at))
    series = known.of("a")
    assert series is not None
    assert samples.MOST_POINTS / 4 < len(series.at) < samples.MOST_POINTS
    assert series.at[0] == 0.0 and series.at[-1] > 90_000
    assert len(series.cores()) == len(series.at) == len(series.memory_mib) == len(series.vram_mib)


def test_of_too_many_attempts_those_go_that_were_heard_of_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_ATTEMPTS", 8)
    known = Samples()
    for number in range(8):
        known.heard([line(f"a{number}")], float(number))
    known.heard([line("a0")], 8.0)
    known.heard([line("new")], 9.0)
    assert known.of("a0") and known.of("new") and known.of("a7")
    assert known.of("a1") is None
    known.heard([line("silent", 0)], 10.0)
    assert known.of("silent") is None


def test_attempts_stay_within_their_bound_however_many_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_ATTEMPTS", 8)
    known = Samples()
    for at in range(3):
        known.heard([line(f"{at}.{number}") for number in range(20)], float(at))
    assert len(known._of) <= 8


async def test_workers_are_listed_by_name_and_those_that_are_gone_are_left_out(hub: RunningHub, api: Api) -> None:
    await hub.worker()
    found = await api.get("/v1/workers?id=w&id=gone")
    assert [one["id"] for one in found["workers"]] == ["w"] and found["next"] is None
