"""The real command against a real hub and a real worker."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal
from tests.process_fleet import OSTLER, TWO_A100, ProcessFleet, process_fleet, until


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("fleet"), "box", offer=TWO_A100, drain_s=1) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def failed(fleet: ProcessFleet) -> str:
    """A job that ran and failed, for all who only look."""
    job_id = fleet.submit(
        "--name", "unlucky", "--env", "RATE=0.5", "--cpus", "1", "--", "sh", "-c", "echo rate $RATE; exit 3"
    )
    done = fleet.run("wait", job_id)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"ostler: unlucky ({job_id}) failed: exit code 3: rate 0.5\n"
    return job_id


@pytest.fixture(scope="module")
def waiting(fleet: ProcessFleet) -> str:
    """A job that no worker here could ever run."""
    return fleet.submit("--name", "too-big", "--gpus", "4", "--", "true")


def test_submit_prints_the_id_and_nothing_else(fleet: ProcessFleet) -> None:
    done = fleet.run("submit", "--", "true")
    assert done.returncode == 0
    assert re.fullmatch(r"[0-9a-z]{18}\n", done.stdout)
    assert done.stderr == ""


def test_a_file_that_stays_behind_is_told_of_with_how_to_take_it_along(fleet: ProcessFleet, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    command = [*OSTLER, "run", "--", "python", "train.py"]
    alone = subprocess.run(command, cwd=tmp_path, env=fleet.environment, capture_output=True, text=True, timeout=60)
    assert alone.returncode == 2
    assert "starts in an empty folder, without train.py; --snapshot . takes this folder along" in alone.stderr
    command[len(OSTLER) + 1 : len(OSTLER) + 1] = ["--snapshot", "."]
    along = subprocess.run(command, cwd=tmp_path, env=fleet.environment, capture_output=True, text=True, timeout=60)
    assert (along.returncode, along.stdout) == (0, "trained\n")
    assert "empty folder" not in along.stderr


def test_jobs_and_workers_have_a_second_name(fleet: ProcessFleet, failed: str) -> None:
    assert failed in {job["id"] for job in fleet.json("list", "--state", "failed")["jobs"]}
    assert [worker["id"] for worker in fleet.json("worker", "list")["workers"]] == ["box"]


def test_submit_and_wait_exits_with_the_outcome(fleet: ProcessFleet) -> None:
    assert fleet.run("submit", "--wait", "--", "true").returncode == 0
    assert fleet.run("submit", "--wait", "--", "false").returncode == 1


def test_a_chosen_id_given_again_is_the_same_job_and_another_spec_is_refused(fleet: ProcessFleet) -> None:
    assert fleet.submit("--id", "chosen-1", "--", "true") == "chosen-1"
    assert fleet.submit("--id", "chosen-1", "--", "true") == "chosen-1"
    again = fleet.run("submit", "--id", "chosen-1", "--", "false")
    assert again.returncode == 2
    assert "chosen-1" in again.stderr


def test_what_a_job_starts_after_is_named_as_everywhere(fleet: ProcessFleet) -> None:
    first = fleet.submit("--name", "first", "--gpus", "99", "--", "true")
    for called in ("first", first, first[:-2]):
        assert fleet.json("show", fleet.submit("--after", called, "--", "true"))["spec"]["depends_on"] == [first]
    wrong = fleet.run("submit", "--after", "nobody", "--", "true")
    assert (wrong.returncode, wrong.stderr) == (2, "ostler: --after (depends_on): there is no job nobody\n")
    fleet.run("cancel", first)


def test_a_spec_file_is_submitted(fleet: ProcessFleet, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('name = "from-file"\ncommand = ["true"]\nmin_cpu_cores = 1\n')
    job_id = fleet.submit("--file", str(tmp_path / "job.toml"), "--priority", "5")
    spec = fleet.json("show", job_id)["spec"]
    assert (spec["name"], spec["priority"], spec["min_cpu_cores"]) == ("from-file", 5, 1)


def test_a_folder_is_sent_along_and_the_program_starts_in_it(fleet: ProcessFleet, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("from the folder\n")
    done = fleet.run("run", "--snapshot", str(tmp_path), "--", "cat", "words.txt")
    assert (done.returncode, done.stdout) == (0, "from the folder\n"), done.stderr


def test_a_folder_that_cannot_be_sent_is_refused_by_name(fleet: ProcessFleet, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    for folder, said in ((tmp_path / "nowhere", "is not a folder"), (tmp_path, "is a link to /etc/hostname")):
        done = fleet.run("submit", "--snapshot", str(folder), "--", "true")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("ostler: --snapshot")
        assert said in done.stderr


def test_what_the_hub_refuses_is_told_by_the_options_names(fleet: ProcessFleet) -> None:
    done = fleet.run("submit", "--array", "2", "--nodes", "2", "--tier", "urgent", "--", "true")
    assert done.returncode == 2
    assert "--array (array): " in done.stderr
    assert "--tier (job_tier): " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_size_never_reaches_the_hub(fleet: ProcessFleet) -> None:
    done = fleet.run("submit", "--memory", "8q", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--memory: '8q' is not a size" in done.stderr


def test_show_and_logs_find_a_job_by_id_by_prefix_and_by_name(fleet: ProcessFleet, failed: str) -> None:
    assert fleet.json("show", failed)["id"] == failed
    assert fleet.json("show", failed[:13])["id"] == failed
    document = fleet.json("show", "unlucky")
    assert (document["id"], document["state"], document["exit_code"]) == (failed, "failed", 3)
    logs = fleet.run("logs", "unlucky")
    assert (logs.returncode, logs.stdout, logs.stderr) == (0, "rate 0.5\n", "")


def test_show_tells_people_what_happened(fleet: ProcessFleet, failed: str) -> None:
    out = fleet.run("show", failed).stdout
    assert out.startswith("unlucky  ✗ failed on box")
    assert re.search(r"exit code +3\n", out)
    assert re.search(r"1 +box +✗ failed", out)


def test_why_of_a_failed_job_says_what_ended_it(fleet: ProcessFleet, failed: str) -> None:
    assert "Failed: exit code 3: rate 0.5." in fleet.run("why", failed).stdout


def test_why_of_a_failed_job_shows_the_end_of_its_log(fleet: ProcessFleet, failed: str) -> None:
    assert fleet.run("why", failed).stdout.endswith("The end of its log\n  rate 0.5\n")


def test_what_if_answers_in_words_and_in_json_and_changes_nothing(fleet: ProcessFleet, waiting: str) -> None:
    out = fleet.run("whatif", "--job", waiting, "--gpus", "2").stdout
    assert out.startswith(f"What if: {waiting} with gpu_count = 2\n")
    assert re.search(r"starts +never, as things are +in 0s \(0s – 0s\)", out)
    found = fleet.json("whatif", "--add-worker", "2*box", "--gpus", "1")
    assert found["then"]["start"]["likely"]
    assert fleet.json("show", waiting)["spec"]["gpu_count"] == 4
    assert fleet.workers() == ["box"]


def test_what_if_of_a_worker_that_is_not_there_is_exit_code_5(fleet: ProcessFleet) -> None:
    done = fleet.run("whatif", "--drain", "nobody")
    assert (done.returncode, done.stderr) == (5, "ostler: drain: there is no worker 'nobody'\n")


def test_why_of_a_waiting_job_says_what_is_missing_and_where(fleet: ProcessFleet, waiting: str) -> None:
    out = fleet.run("why", "too-big").stdout
    assert "needs 4 GPUs; box has 0 free of 2" in out or "needs 4 GPUs; box has 2 free of 2" in out
    assert re.search(r"box +✗ no +needs 4 GPUs; has", out)
    assert "To start it now: ask for 2 GPUs instead of 4 (on box)" in out
    assert fleet.json("why", waiting)["state"] == "pending"


def test_jobs_are_listed_with_their_reasons(fleet: ProcessFleet, failed: str, waiting: str) -> None:
    out = fleet.run("jobs").stdout
    assert re.search(
        rf"{waiting[:12]}\w* +too-big +○ pending +4×GPU +\w+ +no registered worker could ever run this", out
    )
    assert re.search(r"unlucky +✗ failed +box +1 core +\w+ +exit code 3", out)
    assert [job["id"] for job in fleet.json("jobs", "--name", "too-big")["jobs"]] == [waiting]
    assert all(job["state"] == "failed" for job in fleet.json("jobs", "--state", "failed")["jobs"])


def test_status_has_the_fleet_on_one_screen(fleet: ProcessFleet, waiting: str) -> None:
    out = fleet.run("status").stdout
    assert "1 of 1 worker connected" in out
    assert re.search(r"box +○ ready +▫▫ 0 of 2 A100 80 GiB", out)
    assert f"too-big ({waiting}) has waited longest" in out
    assert fleet.json("status")["oldest_pending"]["id"] == waiting


def test_workers_can_be_looked_at_drained_and_resumed(fleet: ProcessFleet) -> None:
    assert re.search(
        r"GPUs\n +# +GPU +VRAM FREE +HELD BY\n +0 +A100 +80 of 80 GiB +free", fleet.run("worker", "show", "box").stdout
    )
    assert fleet.run("worker", "drain", "box").stdout == "box takes nothing new; what runs there goes on\n"
    assert "◐ draining" in fleet.run("workers").stdout
    assert fleet.json("worker", "resume", "box")["draining"] is False
    assert fleet.run("worker", "show", "nobody").returncode == 5


def test_wait_gives_up_with_6_and_cancel_ends_what_was_waited_for(fleet: ProcessFleet) -> None:
    job_id = fleet.submit("--name", "long", "--", "sleep", "60")
    late = fleet.run("wait", job_id, "--timeout", "300ms")
    assert late.returncode == 6
    assert f"time is up and long ({job_id}) is " in late.stderr
    both = fleet.run("cancel", "long", "no-such-job")
    assert both.stdout == f"cancelled long ({job_id})\n"
    assert (both.returncode, both.stderr) == (5, "ostler: there is no job 'no-such-job'\n")
    ended = fleet.run("wait", job_id, "--json")
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["jobs"][0]["state"] == "cancelled"


def test_requeue_runs_a_job_again(fleet: ProcessFleet) -> None:
    mark = fleet.folder / "mark"
    job_id = fleet.submit("--name", "again", "--", "test", "-e", str(mark))
    assert fleet.run("wait", job_id).returncode == 1
    mark.touch()
    assert fleet.run("requeue", "again").stdout == f"again ({job_id}) waits for a place again\n"
    assert fleet.run("wait", job_id).returncode == 0
    assert len(fleet.json("show", job_id)["attempts"]) == 2


def test_a_waiting_job_gets_another_priority_also_one_below_zero(fleet: ProcessFleet) -> None:
    job_id = fleet.submit("--name", "patient", "--gpus", "9", "--", "true")
    for value in ("7", "-7"):
        done = fleet.run("priority", value, "patient")
        assert done.stdout == f"patient ({job_id}) has priority {value}\n", done.stderr
        assert fleet.json("show", job_id)["priority"] == int(value)
    fleet.run("cancel", job_id)
    assert fleet.run("priority", "1", job_id).returncode != 0


def test_an_array_is_one_job_with_many_tasks(fleet: ProcessFleet) -> None:
    job_id = fleet.submit("--array", "4", "--", "sh", "-c", "echo task $OSTLER_INDEX; test $OSTLER_INDEX != 2")
    assert fleet.run("wait", job_id).returncode == 1
    document = fleet.json("show", job_id, "--tasks")
    assert document["counts"] == {"succeeded": 3, "failed": 1}
    assert [task["state"] for task in document["tasks"]] == ["succeeded", "succeeded", "failed", "succeeded"]
    assert fleet.run("logs", f"{job_id}.3").stdout == "task 3\n"
    whole = fleet.run("logs", job_id)
    assert whole.returncode == 2
    assert f"ostler logs {job_id}.0" in whole.stderr


@pytest.mark.parametrize(("program", "code"), [("echo out; exit 7", 7), ("kill -TERM $$", 143)])
def test_run_exits_as_the_job_did(fleet: ProcessFleet, program: str, code: int) -> None:
    done = fleet.run("run", "--", "sh", "-c", program)
    assert done.returncode == code
    assert done.stdout == ("out\n" if code == 7 else "")
    assert "failed: exit code" in done.stderr


def test_run_shows_the_output_and_is_quiet_about_success(fleet: ProcessFleet) -> None:
    done = fleet.run("run", "--gpus", "1", "--where", "zone = eu", "sh", "-c", "echo to stdout; echo to stderr >&2")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["to stderr", "to stdout"]
    assert re.fullmatch(r"job \w+\n", done.stderr)


def test_run_of_what_cannot_be_placed_in_time_fails_with_the_reason(fleet: ProcessFleet) -> None:
    done = fleet.run("run", "--gpus", "3", "--schedule-timeout", "500ms", "--", "true")
    assert done.returncode == 1
    assert "could not be placed: not placed within 0.5 s" in done.stderr
    assert "needs 3 GPUs" in done.stderr


def test_an_interrupted_run_without_a_terminal_leaves_the_job_and_says_how_to_see_it_again(fleet: ProcessFleet) -> None:
    process = fleet.start("run", "--name", "left", "--", "sh", "-c", "echo started; sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    job = fleet.json("show", "left")
    assert job["state"] == "running"
    assert f"ostler logs -f {job['id']}" in told
    assert fleet.run("cancel", "left").returncode == 0


def test_an_interrupted_run_on_a_terminal_asks_and_cancels(fleet: ProcessFleet) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*OSTLER, "run", "--name", "asked", "--", "sh", "-c", "echo started; sleep 60"],
        env=fleet.environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    told = b""
    while b"[y/N]" not in told:
        told += os.read(ours, 1024)
    os.write(ours, b"y\n")
    process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 130
    assert fleet.json("show", "asked")["state"] == "cancelled"


def test_tokens_are_made_used_and_revoked(fleet: ProcessFleet, failed: str) -> None:
    made = fleet.json("token", "create", "--role", "viewer", "--user", "ada")
    asked = ("--token", made["token"])
    assert fleet.run("jobs", *asked).returncode == 0
    refused = fleet.run("cancel", failed, *asked)
    assert refused.returncode == 4
    assert "viewer" in refused.stderr
    assert re.search(rf"{made['id']} +viewer +ada", fleet.run("token", "list").stdout)
    assert fleet.run("token", "revoke", made["id"]).returncode == 0
    revoked = fleet.run("jobs", *asked)
    assert revoked.returncode == 4
    assert revoked.stderr.splitlines()[-1].startswith("ostler: this token was revoked; ")
    unknown = fleet.run("jobs", "--token", "nobody-knows-this")
    assert unknown.returncode == 4
    warned, told = unknown.stderr.splitlines()
    assert "can be read by everybody on this machine" in warned
    assert told == "ostler: the hub does not know this token; bring a valid one by --token or OSTLER_TOKEN"


def test_a_token_may_come_from_a_file(fleet: ProcessFleet, tmp_path: Path) -> None:
    assert fleet.run("jobs", "--token", f"@{fleet.state / 'admin.token'}", "--state-dir", str(tmp_path)).returncode == 0
    missing = fleet.run("jobs", "--token", f"@{tmp_path / 'none'}")
    assert missing.returncode == 4
    assert "cannot be read" in missing.stderr


@pytest.mark.parametrize("command", ["show", "why", "logs", "wait", "requeue"])
def test_an_unknown_id_is_exit_code_5(fleet: ProcessFleet, command: str) -> None:
    done = fleet.run(command, "no-such-job")
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "ostler: there is no job 'no-such-job'\n")


def test_a_run_survives_a_hub_that_is_killed_and_started_again(fleet: ProcessFleet) -> None:
    go = fleet.folder / "go"
    program = f"echo before; while ! test -e {go}; do sleep 0.1; done; echo after; exit 5"
    process = fleet.start("run", "--", "sh", "-c", program)
    assert process.stdout is not None
    assert process.stdout.readline() == "before\n"
    fleet.kill("hub")
    fleet.start_hub()
    until(lambda: fleet.json("workers")["workers"][0]["status"] == "ready", "the worker is back", 30, process)
    go.touch()
    rest, told = process.communicate(timeout=60)
    assert rest == "after\n"
    assert process.returncode == 5, told


def test_in_a_terminal_run_says_what_a_job_waits_for_and_a_wait_shows_how_far_it_is(fleet: ProcessFleet) -> None:
    waits = Terminal(fleet, "run", "--name", "hopeful", "--gpus", "7", "--", "true", columns=200)
    assert "hopeful" in waits.until("waits for a place")
    assert "needs 7 GPUs" in waits.until("GPUs")
    assert fleet.run("cancel", "hopeful").returncode == 0
    assert waits.exit_code() == 1
    bar = Terminal(fleet, "submit", "--array", "3", "--wait", "--", "sleep", "1", columns=120)
    bar.until("waiting for the job")
    bar.until("of 3 succeeded")
    assert bar.exit_code() == 0
