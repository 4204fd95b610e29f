"""Traces of jobs: read, drawn, replayed under three policies of one core, and told."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.process_fleet import OSTLER

from ostler.domain.errors import BadInput
from ostler.sim import jobs
from ostler.sim.jobs import TracedJob
from ostler.sim.replay import FIFO, HOLDS, SKIP, Ran, Replayed, compared, machines, report

HEAD = "submit,duration,gpus,user"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def test_a_trace_is_read_in_the_order_of_submission_whatever_the_order_of_its_columns(file: Path) -> None:
    file.write_text("user, gpus, submit, duration, limit, cpus\nbob,2,60,30.5,,4\n ann ,1,0,10,3600,\n")
    assert jobs.read(file) == [
        TracedJob(0.0, 10.0, 1, "ann", limit=3600.0),
        TracedJob(60.0, 30.5, 2, "bob", cpus=4.0),
    ]


def test_every_mistake_is_told_by_its_line(file: Path) -> None:
    file.write_text(f"{HEAD}\n0,10,1,ann\n0,ten,1,ann\n0,10,-1,ann\n,10,1,ann\n")
    with pytest.raises(BadInput) as caught:
        jobs.read(file)
    first, *lines = str(caught.value).splitlines()
    assert first == f"{file}:"
    assert [line.partition(":")[0] for line in lines] == ["line 3", "line 4", "line 5"]
    assert "gpus is -1; it must be 0 or more" in lines[1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("submit,duration,gpus\n", "has no column user"),
        (f"{HEAD},colour\n0,1,1,ann,red\n", "has an unknown column 'colour'"),
        (f"{HEAD}\n", "has no jobs"),
        ("", "has no column submit"),
    ],
)
def test_what_is_no_trace_is_refused_with_what_is_wrong(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(BadInput, match=told):
        jobs.read(file)


def test_a_drawn_trace_follows_from_its_seed_and_is_read_back_as_it_was_written(file: Path) -> None:
    one = jobs.drawn(3, 50, 16)
    assert one == jobs.drawn(3, 50, 16)
    assert one != jobs.drawn(4, 50, 16)
    jobs.write(one, file)
    assert jobs.read(file) == one


def test_a_drawn_trace_asks_for_about_as_much_as_it_was_told_to() -> None:
    drawn = jobs.drawn(1, 20_000, 64, load=0.5)
    asked = sum(job.gpus * job.duration for job in drawn) / (64 * drawn[-1].submit)
    assert 0.4 < asked < 0.6


def starts(one: Replayed) -> dict[str, float]:
    return {ran.job.name: ran.started for ran in one.ran}


def test_the_same_trace_shows_what_each_policy_does() -> None:
    """One machine of two GPUs: a job of one runs for long, then comes one that needs both, then small ones."""
    trace = [
        TracedJob(0.0, 1000.0, 1, "ann", limit=1000.0, name="long"),
        TracedJob(1.0, 100.0, 2, "bob", limit=100.0, name="whole"),
        *(TracedJob(2.0 + 300 * n, 310.0, 1, "eve", limit=310.0, name=f"small{n}") for n in range(6)),
    ]
    found = {one.policy: starts(one) for one in compared(trace, machines(1, 2), hold_after_s=60.0)}
    assert found[FIFO]["whole"] == 1000.0
    assert found[FIFO]["small0"] >= 1000.0, "the head blocks"
    assert found[SKIP]["small0"] == 2.0
    assert found[SKIP]["whole"] > 1800.0, "it is passed over until they are all done"
    assert found[HOLDS]["small0"] == 2.0
    assert found[HOLDS]["whole"] == 1000.0


def test_what_needs_more_gpus_than_a_machine_has_runs_as_a_gang_of_whole_machines() -> None:
    trace = [TracedJob(0.0, 10.0, 8, "ann"), TracedJob(0.0, 10.0, 1, "bob"), TracedJob(0.0, 10.0, 64, "eve")]
    [_, _, ours] = compared(trace, machines(2, 4))
    assert ours.never == 1, "sixty-four are more than there are"
    assert sorted(one.started for one in ours.ran) == [0.0, 10.0]


def test_all_jobs_end_and_no_policy_loses_one() -> None:
    trace = jobs.drawn(5, 300, 16, load=1.2)
    for one in compared(trace, machines(2, 8)):
        assert len(one.ran) == 300
        assert all(ran.ended == ran.started + ran.job.duration for ran in one.ran)


def test_a_report_has_waits_and_completions_by_size_and_user() -> None:
    done = [Ran(TracedJob(0.0, 10.0, 1 + n % 2, f"u{n % 4}"), float(n), n + 10.0) for n in range(100)]
    told = report(Replayed(HOLDS, done, 0, 0, 0), 4)
    assert (told.all.wait.mean, told.all.wait.p50, told.all.wait.p95, told.all.wait.most) == (49.5, 49.0, 94.0, 99.0)
    assert told.all.completion.most == 109.0
    assert [(group.name, group.jobs) for group in told.by_size] == [("1 GPU", 50), ("2 GPU", 50)]
    assert [group.name for group in told.by_user] == ["u0", "u1", "u2", "u3"]
    assert told.makespan_s == 109.0
    assert told.used == pytest.approx(1500 / (4 * 109.0))


def simulated(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*OSTLER, "simulate", *arguments], capture_output=True, text=True, timeout=60)


def test_the_command_replays_a_file_and_prints_a_table_or_json(file: Path) -> None:
    jobs.write(jobs.drawn(2, 40, 8, largest=4), file)
    table = simulated(str(file), "--format", "jobs", "--workers", "2", "--gpus", "4")
    assert table.returncode == 0
    assert [word in table.stdout for word in ("fifo", "skip", "ostler", "user00", "MEAN WAIT")] == [True] * 5
    found = json.loads(simulated(str(file), "--workers", "2", "--gpus", "4", "--hold-after", "never", "--json").stdout)
    assert [one["policy"] for one in found["policies"]] == [FIFO, SKIP, HOLDS]
    assert {one["jobs"] for one in found["policies"]} == {40}
    assert found["policies"][2]["holds"] == 0


def test_the_command_draws_a_trace_where_there_is_none_and_writes_it_down(file: Path) -> None:
    done = simulated("--jobs", "30", "--seed", "7", "--workers", "1", "--gpus", "4", "--save", str(file))
    assert done.returncode == 0
    assert "30 jobs in" in done.stdout
    assert len(jobs.read(file)) == 30


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--format", "tarot"], "--format: 'tarot' is not one of"),
        (["--hold-after", "soon"], "--hold-after: 'soon' is not a duration"),
        (["--load", "-1"], "--load: -1 must be above 0"),
        (["/nowhere.csv"], "/nowhere.csv: cannot be read"),
    ],
)
def test_what_the_command_cannot_use_is_told_in_one_sentence(arguments: list[str], told: str) -> None:
    done = simulated(*arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
