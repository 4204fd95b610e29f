"""The worker as a process: from a claim to its report, and everything that may come between."""

import io
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.process_fleet import until
from tests.pull.bare import Start
from tests.pull.scripted_hub import PATIENCE_S, ScriptedPullHub

from ostler import pull

READY = """echo '{"ready": 1}'"""
MIB = 1 << 20


def sh(script: str) -> tuple[str, str, str]:
    return ("sh", "-c", script)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids_in(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("*.pid")]


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    folder = tmp_path / "pids"
    folder.mkdir()
    return folder


def tree(pids: Path, *more: str) -> str:
    """A task with a child, and with one in a session of its own."""
    children = [f"sleep 1000 & echo $! > {pids}/child.pid", f"setsid sleep 1000 & echo $! > {pids}/session.pid"]
    return "; ".join([f"echo $$ > {pids}/main.pid", *children, *more, READY, "wait"])


# A job


def test_a_job_runs_on_a_bare_interpreter_and_its_outputs_arrive(
    hub: ScriptedPullHub, start: Start, tmp_path: Path
) -> None:
    script = 'mkdir "$1/sub"; echo weights > "$1/sub/model.bin"; echo \'{"loss": 0.5}\' > "$1/metrics.jsonl"; echo done'
    hub.add(*sh(script), "train", "$OSTLER_OUT")
    code, said = start("--once").end()
    assert code == 0, said
    (claimed,) = hub.of("claim", "")
    assert claimed.body["hostname"] == "pi"
    assert {"cpu_cores", "ram_available_gib", "cuda_available"} <= claimed.body["capability"].keys()
    (done,) = hub.of("complete")
    (sha256,) = hub.artifacts
    assert done.body["artifact_id"] == sha256
    assert done.body["metrics"] == {"loss": 0.5}
    with tarfile.open(fileobj=io.BytesIO(hub.artifacts[sha256])) as tar:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4
        tar.extractall(tmp_path / "again", **safely)
    assert (tmp_path / "again" / "sub" / "model.bin").read_text() == "weights\n"
    assert pull.pack(tmp_path / "again", io.BytesIO()) == sha256
    assert hub.logs[done.body["attempt"]] == b"done\n"
    assert not list((tmp_path / "work" / "jobs").iterdir())


def test_a_job_that_writes_nothing_completes_without_an_artifact(hub: ScriptedPullHub, start: Start) -> None:
    hub.add(*sh("""echo '{"epoch": 1, "loss": 0.5}'; echo '{"epoch": 2, "name": "x"}'; echo '{"broken'"""))
    assert start("--once").end()[0] == 0
    (done,) = hub.of("complete")
    assert "artifact_id" not in done.body
    assert done.body["metrics"] == {"epoch": 2.0, "loss": 0.5}
    assert not hub.artifacts


def test_a_task_finds_its_things_and_none_of_the_worker_s_secrets(
    hub: ScriptedPullHub, start: Start, tmp_path: Path
) -> None:
    program = "import json, os; print(json.dumps({**os.environ, 'cwd': os.getcwd()}))"
    hub.add("{python}", "-c", program, job_id="j1", env={"MODE": "fast", "SECRET_OF_MY_OWN": "mine"}, task_id="j1.0")
    secrets = {"AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x", "OPENAI_API_KEY": "x", "WHERE": "has a-token in it"}
    code, said = start("--once", PLAIN="kept", NOTIFY_SOCKET="/run/x", **secrets).end()
    assert code == 0, said
    ((attempt, log),) = hub.logs.items()
    env = json.loads(log)
    assert (env["PLAIN"], env["MODE"], env["SECRET_OF_MY_OWN"]) == ("kept", "fast", "mine")
    assert (env["OSTLER_JOB_ID"], env["OSTLER_TASK_ID"], env["OSTLER_ATTEMPT"]) == ("j1", "j1.0", attempt)
    assert env["OSTLER_HUB"] == hub.url
    assert Path(env["OSTLER_OUT"]).is_relative_to(tmp_path / "work" / "jobs")
    assert env["cwd"] not in (env["OSTLER_OUT"], str(tmp_path))
    assert not env.keys() & {*secrets, "NOTIFY_SOCKET", "OSTLER_TOKEN"}
    assert "a-token" not in log.decode()


def test_a_failure_carries_the_exit_code_and_the_last_line(hub: ScriptedPullHub, start: Start) -> None:
    hub.add(*sh("echo begin; echo 'ValueError: no such solver' >&2; echo; exit 3"))
    assert start("--once").end()[0] == 1
    (failed,) = hub.of("fail")
    assert (failed.body["error"], failed.body["exit_code"]) == ("exit code 3: ValueError: no such solver", 3)
    assert hub.logs[failed.body["attempt"]] == b"begin\nValueError: no such solver\n\n"


def test_a_signal_is_told_as_a_shell_tells_it(hub: ScriptedPullHub, start: Start) -> None:
    hub.add(*sh("kill -9 $$"))
    assert start("--once").end()[0] == 1
    (failed,) = hub.of("fail")
    assert (failed.body["error"], failed.body["exit_code"]) == ("exit code 137: it printed nothing", 137)


def test_a_program_that_is_not_there_and_outputs_that_cannot_be_packed_are_failures(
    hub: ScriptedPullHub, start: Start
) -> None:
    hub.add("no-such-program-anywhere", job_id="j1")
    hub.add(*sh('ln -s /etc/hostname "$OSTLER_OUT/link"'), job_id="j2")
    hub.add("true", job_id="j3")
    code, said = start("--jobs", "3").end()
    assert code == 0, said
    assert "no-such-program-anywhere" in hub.of("fail", "j1")[0].body["error"]
    assert "link is a link to /etc/hostname" in hub.of("fail", "j2")[0].body["error"]
    assert hub.of("complete", "j3")


def test_of_a_long_log_the_head_and_the_tail_arrive(hub: ScriptedPullHub, start: Start) -> None:
    hub.add("{python}", "-c", f"print('a' * {MIB}); print('b' * {2 * MIB}); print('c' * {MIB})")
    assert start("--once").end()[0] == 0
    (log,) = hub.logs.values()
    left_out = 2 * MIB + 3
    assert log == b"a" * MIB + f"\n[ostler: {left_out} bytes left out here]\n".encode() + b"c" * (MIB - 1) + b"\n"


def test_a_checkpoint_is_there_again_on_the_next_attempt_and_gone_after_success(
    hub: ScriptedPullHub, start: Start
) -> None:
    script = 'test -e "$OSTLER_CHECKPOINT/epoch" && exit 0; touch "$OSTLER_CHECKPOINT/epoch"; exit 1'
    hub.add(*sh(script))
    hub.add(*sh(script))
    worker = start("--jobs", "2")
    assert worker.end()[0] == 0
    assert [one.word for one in hub.said if one.word in ("fail", "complete")] == ["fail", "complete"]
    assert not list((worker.work / "checkpoints").iterdir())


def test_what_led_to_a_success_elsewhere_is_not_gone_on_from(hub: ScriptedPullHub, start: Start) -> None:
    script = 'test -e "$OSTLER_CHECKPOINT/epoch" && exit 3; touch "$OSTLER_CHECKPOINT/epoch"; exit 1'
    hub.add(*sh(script))
    hub.add(*sh(script), after="an attempt that succeeded")
    assert start("--jobs", "2").end()[0] == 0
    assert [said.body["exit_code"] for said in hub.of("fail")] == [1, 1]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for the lock of a worker and for nothing else."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=3", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root mounts disks: run the tests as root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_is_the_fault_of_the_machine_and_of_no_job(
    hub: ScriptedPullHub, start: Start, full: Path
) -> None:
    hub.add("true")
    worker = start("--once", "--work", str(full))
    assert worker.end()[0] == 1
    (failed,) = hub.of("fail")
    assert "No space left on device" in failed.body["error"]
    assert (failed.body["returned"], failed.body["fault"], "exit_code" in failed.body) == (True, "worker", False)


def test_a_checkpoint_that_nobody_came_back_for_goes_after_a_week(hub: ScriptedPullHub, start: Start) -> None:
    hub.add(*sh('touch "$OSTLER_CHECKPOINT/epoch"; exit 1'))
    worker = start("--jobs", "1")
    assert worker.end()[0] == 0
    (left,) = (worker.work / "checkpoints").iterdir()
    young = left.with_name("young")
    young.mkdir()
    week_ago = time.time() - 7 * 86400 - 60
    for path in (left / "epoch", left):
        os.utime(path, (week_ago, week_ago))
    hub.add(*sh("true"))
    assert start("--jobs", "1").end()[0] == 0
    assert list(young.parent.iterdir()) == [young]


# Its lease


@pytest.mark.long
def test_heartbeats_tell_the_last_numbers_and_a_cancelled_task_dies_with_all_that_it_has_started(
    hub: ScriptedPullHub, start: Start, pids: Path
) -> None:
    stubborn = f"""sh -c 'trap "" TERM; sleep 1000; sleep 1000' & echo $! > {pids}/stubborn.pid"""
    hub.add(*sh(tree(pids, stubborn)))
    start()
    assert hub.wait_for("heartbeat", progress={"ready": 1.0})["attempt"]
    assert len(pids_in(pids)) == 4
    hub.cancel = True
    assert hub.wait_for("fail")["error"] == "cancelled"
    assert all(is_gone(pid) for pid in pids_in(pids))


def test_what_a_task_leaves_behind_is_gone_before_its_end_is_told(
    hub: ScriptedPullHub, start: Start, pids: Path
) -> None:
    hub.add(*sh(f"sleep 1000 & echo $! > {pids}/a.pid; setsid sleep 1000 & echo $! > {pids}/b.pid"))
    assert start("--once").end()[0] == 0
    assert hub.of("complete")
    assert len(pids_in(pids)) == 2
    assert all(is_gone(pid) for pid in pids_in(pids))


def test_a_task_that_the_hub_has_taken_back_is_killed_and_the_next_one_is_claimed(
    hub: ScriptedPullHub, start: Start, pids: Path
) -> None:
    hub.add(*sh(f"echo $$ > {pids}/main.pid; {READY}; sleep 1000"))
    start("--jobs", "2")
    hub.wait_for("heartbeat", progress={"ready": 1.0})
    hub.taken = True
    hub.wait(lambda: len(hub.of("claim", "")) > 1, "it asks again")
    assert all(is_gone(pid) for pid in pids_in(pids))
    assert not hub.of("fail")
    hub.taken = False
    hub.add("true", job_id="j2")
    assert hub.wait_for("complete", "j2")


def test_a_worker_that_is_cut_off_kills_its_task_and_says_nothing_of_it_any_more(
    hub: ScriptedPullHub, start: Start, pids: Path
) -> None:
    hub.add(*sh(tree(pids)))
    start("--cut-off-seconds", "1")
    hub.wait_for("heartbeat", progress={"ready": 1.0})
    hub.is_away = True
    until(lambda: all(is_gone(pid) for pid in pids_in(pids)), "the task is gone", PATIENCE_S)
    before = len(hub.said)
    hub.is_away = False
    hub.wait(lambda: len(hub.of("claim", "")) > 1, "it asks again")
    assert {one.word for one in hub.said[before:]} == {"claim"}


def test_a_short_absence_of_the_hub_costs_nothing(hub: ScriptedPullHub, start: Start) -> None:
    hub.failing = {"claim": 1, "heartbeat": 2, "complete": 1}
    hub.cut_after = [3000]
    hub.add(*sh('echo weights > "$OSTLER_OUT/model"'))
    code, said = start("--jobs", "1").end()
    assert code == 0, said
    assert len(hub.of("complete")) == len(hub.artifacts) == 1
    assert [one.content_range.partition("-")[0] for one in hub.uploads] == ["", "bytes 3000"]


# Leaving


def test_after_sigterm_the_task_may_finish_and_nothing_more_is_claimed(
    hub: ScriptedPullHub, start: Start, pids: Path
) -> None:
    hub.add(*sh(f"{READY}; until test -e {pids}/go; do sleep 0.02; done"))
    hub.add("true", job_id="j2")
    worker = start()
    hub.wait_for("heartbeat", progress={"ready": 1.0})
    worker.process.send_signal(signal.SIGTERM)
    beats = len(hub.of("heartbeat"))
    hub.wait(lambda: len(hub.of("heartbeat")) > beats + 2, "it still runs")
    (pids / "go").touch()
    assert worker.end()[0] == 0
    assert hub.of("complete")
    assert len(hub.of("claim", "")) == 1


@pytest.mark.parametrize("drain", ["0.2", "600"])
def test_a_task_that_does_not_end_in_time_is_handed_back_as_it_is_at_a_second_signal(
    hub: ScriptedPullHub, start: Start, pids: Path, drain: str
) -> None:
    hub.add(*sh(tree(pids)))
    worker = start("--drain-seconds", drain)
    hub.wait_for("heartbeat", progress={"ready": 1.0})
    worker.process.send_signal(signal.SIGTERM)
    if drain == "600":
        beats = len(hub.of("heartbeat"))
        hub.wait(lambda: len(hub.of("heartbeat")) > beats + 2, "it still runs")
        worker.process.send_signal(signal.SIGINT)
    assert worker.end()[0] == 0
    (failed,) = hub.of("fail")
    assert (failed.body["error"], failed.body["returned"]) == ("the worker is leaving", True)
    assert all(is_gone(pid) for pid in pids_in(pids))


def test_an_idle_worker_leaves_at_once(hub: ScriptedPullHub, start: Start) -> None:
    worker = start("--poll", "1000")
    hub.wait(lambda: hub.of("claim", ""), "it asks")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end()[0] == 0


def test_what_a_killed_worker_has_left_is_ended_by_the_next_one(hub: ScriptedPullHub, start: Start, pids: Path) -> None:
    hub.add(*sh(tree(pids)))
    worker = start()
    hub.wait_for("heartbeat", progress={"ready": 1.0})
    worker.close()
    assert not any(is_gone(pid) for pid in pids_in(pids))
    assert start("--once").end()[0] == 5
    until(lambda: all(is_gone(pid) for pid in pids_in(pids)), "what it left is gone", PATIENCE_S)
    assert not list((worker.work / "jobs").iterdir())


# The command


def test_once_says_by_its_exit_code_how_it_went(hub: ScriptedPullHub, start: Start) -> None:
    hub.reason = "gbt: vram_free 2.0 GiB < 8.0 GiB"
    code, said = start("--once").end()
    assert code == 5
    assert "gbt: vram_free 2.0 GiB < 8.0 GiB" in said
    code, said = start("--once", token="wrong").end()
    assert code == 4
    assert "bring a valid token" in said
    code, said = start("--once", hub="http://127.0.0.1:9").end()
    assert code == 3
    assert "Connection refused" in said
    code, said = start("--once", hub="not-a-url").end()
    assert code == 2
    assert "'not-a-url' is not the address of a hub" in said


def test_the_token_may_be_in_a_file_or_in_the_environment(hub: ScriptedPullHub, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "token.txt"
    file.write_text("a-token\n")
    assert start("--once", token=f"@{file}").end()[0] == 5
    code, said = start("--once", token="@/no/such/file").end()
    assert code == 2
    assert "/no/such/file" in said


def test_two_workers_do_not_share_a_folder(hub: ScriptedPullHub, start: Start) -> None:
    start("--poll", "1000")
    hub.wait(lambda: hub.of("claim", ""), "it asks")
    code, said = start("--once").end()
    assert code == 2
    assert "another worker uses" in said


def test_by_default_it_works_in_a_folder_of_its_own_below_the_state_or_the_temporary_files(
    hub: ScriptedPullHub, start: Start, tmp_path: Path
) -> None:
    for options, expected in ((("--state-dir", f"{tmp_path}/state"), "state/workers/pi"), ((), "tmp/ostler-")):
        (tmp_path / "tmp").mkdir(exist_ok=True)
        hub.add(*sh('echo "$OSTLER_OUT"'))
        worker = start("--once", "--work", "", *options, TMPDIR=str(tmp_path / "tmp"))
        code, said = worker.end()
        assert code == 0, said
        assert hub.logs.popitem()[1].decode().startswith(str(tmp_path / expected))
