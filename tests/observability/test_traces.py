"""Traces of jobs: a real hub, a real worker, and a collector that decodes what the hub sends."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from tests.observability.receiver import Collector, attribute

from ostler.client import AsyncFleet, Fleet
from ostler.client.carrying import carried
from ostler.domain import tracing
from ostler.domain.records import FeedRecord, JobRecord
from ostler.hub import traces
from ostler.worker.environment import inherited
from ostler.worker.tracking import tracked

LONG_S = 60.0
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def own_parent() -> str | None:
    return os.environ.get("TRACEPARENT")


def by_name(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


def told(fleet: Fleet, outcome: str) -> float:
    wanted = f'ostler_trace_spans_total{{outcome="{outcome}"}} '
    return float(next(line for line in fleet.hub.metrics().splitlines() if line.startswith(wanted)).split()[-1])


def test_a_jobs_life_is_a_trace_under_the_span_it_was_submitted_in(fleet: Fleet, collector: Collector) -> None:
    with TracerProvider().get_tracer("test").start_as_current_span("study") as span:
        job = fleet.submit(own_parent, name="mlp")
        seen = job.result(timeout=LONG_S)
        context = span.get_span_context()
    spans = by_name(collector.spans_about(job.id, 3))
    assert set(spans) == {"job mlp", "queued", "attempt 1"}
    whole, queued, attempt = spans["job mlp"], spans["queued"], spans["attempt 1"]
    assert {one.trace_id.hex() for one in spans.values()} == {f"{context.trace_id:032x}"}
    assert whole.parent_span_id.hex() == f"{context.span_id:016x}"
    assert queued.parent_span_id == attempt.parent_span_id == whole.span_id
    assert seen == f"00-{context.trace_id:032x}-{attempt.span_id.hex()}-01"
    document = job.status()
    assert attribute(attempt, "ostler.worker") == "local-0"
    assert attribute(attempt, "ostler.attempt") == document["attempt"]
    assert whole.start_time_unix_nano <= queued.end_time_unix_nano <= attempt.start_time_unix_nano
    assert attempt.end_time_unix_nano <= whole.end_time_unix_nano
    assert [event.name for event in attempt.events] == ["started"]
    assert whole.status.code == Status.STATUS_CODE_OK
    assert collector.services == {"ostler"}


async def test_a_span_that_is_current_in_a_coroutine_is_the_jobs_parent_too(fleet: Fleet) -> None:
    tracer = TracerProvider().get_tracer("test")
    several = AsyncFleet(fleet)
    with tracer.start_as_current_span("study") as span:
        job = await several.submit(own_parent)
    seen = await job.result(timeout=LONG_S)
    assert isinstance(seen, str) and seen.split("-")[1] == f"{span.get_span_context().trace_id:032x}"


def test_a_job_that_fails_and_is_tried_again_has_a_span_for_each_attempt(fleet: Fleet, collector: Collector) -> None:
    job = fleet.submit_command(["sh", "-c", "exit 3"], max_retries=1, max_attempts=5)
    assert job.wait(timeout=LONG_S)["state"] == "failed"
    spans = by_name(collector.spans_about(job.id, 4))
    assert spans["attempt 1"].span_id != spans["attempt 2"].span_id
    assert spans["attempt 2"].status.code == Status.STATUS_CODE_ERROR
    whole = next(span for name, span in spans.items() if name.startswith("job"))
    assert whole.status.code == Status.STATUS_CODE_ERROR
    assert "3" in whole.status.message
    assert not whole.parent_span_id


def test_a_trace_that_is_not_sampled_is_not_sent(fleet: Fleet, collector: Collector) -> None:
    quiet = fleet.submit_command(["true"], env={"TRACEPARENT": PARENT[:-2] + "00"})
    quiet.wait(timeout=LONG_S)
    loud = fleet.submit_command(["true"])
    loud.wait(timeout=LONG_S)
    collector.spans_about(loud.id, 3)
    assert collector.spans_about(quiet.id, 0) == []


def test_of_a_long_array_so_many_attempts_are_told_and_how_many_are_not(fleet: Fleet, collector: Collector) -> None:
    results = fleet.map(abs, range(120))
    assert sum(results) == sum(range(120))
    assert results.job is not None
    spans = collector.spans_about(results.job.id, 102)
    assert len(spans) == 102
    left_out = attribute(next(one for one in spans if one.name == "job abs"), "ostler.attempts_left_out")
    assert isinstance(left_out, int) and left_out >= 20


def test_what_a_collector_does_not_take_is_counted_and_the_hub_goes_on(fleet: Fleet, collector: Collector) -> None:
    before = told(fleet, "failed")
    collector.status = 400
    try:
        fleet.submit_command(["true"]).wait(timeout=LONG_S)
        deadline = time.monotonic() + LONG_S
        while told(fleet, "failed") == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        collector.status = 200
    job = fleet.submit_command(["true"])
    assert job.result(timeout=LONG_S) == 0
    assert len(collector.spans_about(job.id, 3)) == 3


def test_without_the_extra_a_hub_says_so_once_and_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError('not installed')")
    script = """if True:
        import logging, sys
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        from ostler.hub import main, traces
        assert not any(name.startswith("opentelemetry") for name in sys.modules)
        assert traces.opened(None, {})._sender is None
        assert traces.opened(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"})._sender is None
        """
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("install opentelemetry-sdk") == 1


@pytest.mark.parametrize(
    "text",
    ["", "00-0-0-01", "ff" + PARENT[2:], PARENT + "-more", f"00-{'0' * 32}-b7ad6b7169203331-01", "a" * 55],
)
def test_what_is_no_traceparent_is_passed_on_untouched_and_begins_a_trace_of_the_jobs_own(text: str) -> None:
    assert tracing.read_traceparent(text) is None
    assert tracing.continued(text, "attempt") == text
    assert tracing.context_of("job-1", text) == tracing.context_of("job-1", "")


def test_more_ended_jobs_than_can_wait_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        def send(self, stories: list[traces.Story]) -> tuple[int, int]:
            raise AssertionError("nothing is sent here")

    monkeypatch.setattr(traces, "MOST_WAITING", 3)
    kept = traces.Traces(None, Nobody())  # type: ignore[arg-type]
    ends = [FeedRecord(seq=n, at=0.0, kind="job", subject=f"j{n}", body={"state": "succeeded"}) for n in range(5)]
    kept.saw([*ends, FeedRecord(seq=6, at=0.0, kind="job", subject="j0", body={"state": "running"})])
    counted = {sample.labels["outcome"]: sample.value for metric in kept.collect() for sample in metric.samples}
    assert counted == {"sent": 0, "failed": 0, "dropped": 2}


class Reading:
    """A loop whose ledger has forgotten every job, and remembers how many it was asked for at a time."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def read(self, query: Callable[["Reading"], list[traces.Story]]) -> list[traces.Story]:
        return query(self)

    def jobs(self, ids: list[str]) -> dict[str, JobRecord]:
        self.asked.append(len(ids))
        return {}


def ends(count: int) -> list[FeedRecord]:
    return [FeedRecord(seq=n, at=0.0, kind="job", subject=f"j{n}", body={"state": "failed"}) for n in range(count)]


async def test_others_who_read_the_ledger_come_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Told:
        def send(self, stories: list[traces.Story]) -> tuple[int, int]:
            loop.call_soon_threadsafe(sent.set)
            return 0, 0

    reading = Reading()
    kept = traces.Traces(reading, Told())  # type: ignore[arg-type]
    monkeypatch.setattr(traces, "GATHER_S", 0.0)
    kept.saw(ends(50))
    running = asyncio.create_task(kept.run())
    await asyncio.wait_for(sent.wait(), LONG_S)
    running.cancel()
    assert reading.asked == [20, 20, 10]


def test_a_hub_that_stops_does_not_wait_for_a_collector_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()

    class Silent:
        def send(self, stories: list[traces.Story]) -> tuple[int, int]:
            asked.set()
            answer.wait(LONG_S)
            return 0, 0

    async def hub() -> None:
        kept = traces.Traces(Reading(), Silent())  # type: ignore[arg-type]
        kept.saw(ends(1))
        running = asyncio.create_task(kept.run())
        await asyncio.to_thread(asked.wait, LONG_S)
        running.cancel()
        await asyncio.wait({running})

    monkeypatch.setattr(traces, "LAST_S", 0.1)
    stopped = threading.Thread(target=asyncio.run, args=(hub(),), daemon=True)
    stopped.start()
    stopped.join(LONG_S / 3)
    try:
        assert asked.is_set() and not stopped.is_alive()
    finally:
        answer.set()


# What else travels


def test_trackers_travel_with_a_job_and_their_secrets_do_not() -> None:
    own = {
        "MLFLOW_TRACKING_URI": "http://mlflow:5000",
        "MLFLOW_TRACKING_PASSWORD": "hidden",
        "MLFLOW_RUN_ID": "not-shared",
        "WANDB_PROJECT": "mnist",
        "WANDB_API_KEY": "hidden",
        "HOME": "/home/ann",
    }
    spec = carried({"command": ["true"], "env": {"WANDB_PROJECT": "own"}}, own)
    assert spec["env"] == {"MLFLOW_TRACKING_URI": "http://mlflow:5000", "WANDB_PROJECT": "own"}
    assert carried({"command": ["true"]}, own | {"OSTLER_CARRY": "0"}) == {"command": ["true"]}


@pytest.mark.parametrize(
    "own",
    [
        {"MLFLOW_TRACKING_URI": "http://ann:pw@mlflow:5000/x"},
        {"MLFLOW_TRACKING_URI": "postgresql://ann:p/w@db/mlflow"},
        {"MLFLOW_TRACKING_URI": "postgresql://db/mlflow?user=ann&password=pw"},
        {"MLFLOW_REGISTRY_URI": "ann:pw@mlflow.example"},
        {"WANDB_NOTES": "see https://ann:pw@host/run"},
    ],
)
def test_a_password_does_not_travel_wherever_it_stands(own: dict[str, str]) -> None:
    assert carried({"command": ["true"]}, own) == {"command": ["true"]}


def test_bytes_that_are_no_text_stay_at_home(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_NOTES", os.fsdecode(b"caf\xe9"))
    assert fleet.submit_command(["true"]).result(timeout=LONG_S) == 0


def test_a_spec_whose_id_was_chosen_is_the_same_each_time_it_is_sent() -> None:
    own = {"TRACEPARENT": PARENT}
    assert carried({"id": "a"}, own, traced=False) == {"id": "a"}
    assert carried({}, own) == {"env": own}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, {}),
        ({"RATE": "0.1"}, {}),
        ({"WANDB_PROJECT": "p"}, {"WANDB_RUN_ID": "j-7", "WANDB_RESUME": "allow"}),
        ({"WANDB_PROJECT": "p", "WANDB_RESUME": "must"}, {"WANDB_RUN_ID": "j-7", "WANDB_RESUME": "allow"}),
        ({"WANDB_PROJECT": "p", "WANDB_RESUME": "auto"}, {"WANDB_RUN_ID": "j-7", "WANDB_RESUME": "auto"}),
        ({"WANDB_PROJECT": "p", "WANDB_RESUME": "never"}, {}),
        ({"WANDB_RUN_ID": "mine"}, {}),
    ],
)
def test_a_run_of_weights_and_biases_is_the_tasks_through_all_its_attempts(
    asked: dict[str, str], found: dict[str, str]
) -> None:
    assert tracked(asked, "j.7", "attempt-1") == tracked(asked, "j.7", "attempt-2") == found


def test_what_the_worker_itself_was_started_in_is_not_the_tasks() -> None:
    own = {"TRACEPARENT": PARENT, "WANDB_RUN_ID": "w", "MLFLOW_RUN_ID": "m", "MLFLOW_TRACKING_URI": "http://mlflow"}
    assert inherited(own) == {"MLFLOW_TRACKING_URI": "http://mlflow"}


def test_a_retried_attempt_finds_the_same_run(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mnist")
    line = 'echo "$WANDB_PROJECT $WANDB_RUN_ID $WANDB_RESUME"; exit 1'
    job = fleet.submit_command(["sh", "-c", line], max_retries=1)
    job.wait(timeout=LONG_S)
    attempts = [one["attempt"] for one in job.status()["attempts"]]
    logs = {b"".join(fleet.hub.logs(job.id, attempt=attempt)) for attempt in attempts}
    assert (len(attempts), logs) == (2, {f"mnist {job.id} allow\n".encode()})
