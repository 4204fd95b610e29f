"""Tasks under users of their own: what a hostile one reaches of the worker, and of another user's task. Needs root."""

import json
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process_fleet import ProcessFleet, until

ANN, BOB = 61_001, 61_002
CANARY = "canary-in-the-workers-environment"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs tasks as another user: run the tests as root")


@pytest.fixture(scope="module")
def tasks() -> Iterator[Path]:
    """Where these users can pass: the folders of tests are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="ostler-tasks-", dir="/var/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def process_fleet(tmp_path_factory: pytest.TempPathFactory, tasks: Path) -> Iterator[ProcessFleet]:
    process_fleet = ProcessFleet(tmp_path_factory.mktemp("users"))
    process_fleet.state.mkdir(mode=0o700)
    users = f'ann = "{ANN}:{ANN}"\nbob = "{BOB}:{BOB}"\n'
    (process_fleet.state / "ostler.toml").write_text(f'[worker]\ntasks_dir = "{tasks}"\n[worker.run_as]\n{users}')
    process_fleet.environment |= {"OSTLER_TOKEN_OF_MINE": CANARY, "MY_PASSWORD": CANARY, "DB": f"pg://me:{CANARY}@db/x"}
    try:
        process_fleet.start_hub()
        process_fleet.environment["OSTLER_TOKEN"] = (process_fleet.state / "join.token").read_text().strip()
        process_fleet.start_worker("w")
        process_fleet.await_workers("w")
        yield process_fleet
    finally:
        process_fleet.close()


def ran(
    process_fleet: ProcessFleet, user: str, script: str, state: str = "succeeded", **more: Any
) -> tuple[str, dict[str, Any]]:
    """What it printed, and the job."""
    job = process_fleet.hub.submit({"command": ["sh", "-c", script], "user_id": user, "max_attempts": 1, **more})["id"]
    found = until(lambda: (one := process_fleet.hub.job(job)) and one["finished_at"] and one, f"{job} ended")
    text = b"".join(process_fleet.hub.logs(job)).decode()
    assert found["state"] == state, (found["reason"], text, process_fleet.log_of("w"))
    return text, found


def test_a_task_runs_as_its_user_with_no_group_no_capability_and_no_way_to_more(process_fleet: ProcessFleet) -> None:
    text, _ = ran(
        process_fleet, "ann", "id -u; id -G; grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs|Groups):' /proc/self/status"
    )
    uid, groups, *status = text.split("\n")
    assert (uid, groups) == (str(ANN), str(ANN))
    found = dict(line.split(":") for line in status if line)
    assert found.pop("NoNewPrivs").strip() == "1"
    assert found.pop("Groups").strip() == ""
    assert {int(value, 16) for value in found.values()} == {0}


def test_its_folders_are_its_own_and_closed_to_others(process_fleet: ProcessFleet) -> None:
    text, job = ran(
        process_fleet, "ann", 'stat -c "%u %a" . .. $OSTLER_OUT $OSTLER_CHECKPOINT $HOME; echo x > "$HOME/x"'
    )
    assert text.split("\n")[:5] == [f"{ANN} 700"] * 5
    _, again = ran(process_fleet, "bob", "true")
    assert job["attempts"][0]["worker"] == again["attempts"][0]["worker"]


def test_its_environment_has_nothing_of_the_workers_credentials(process_fleet: ProcessFleet) -> None:
    text, _ = ran(process_fleet, "ann", "env; cat /proc/self/environ")
    assert f"USER={ANN}" in text
    assert CANARY not in text
    for name in ("admin.token", "join.token"):
        assert (process_fleet.state / name).read_text().strip() not in text


def test_a_hostile_task_reaches_nothing_of_the_worker_nor_of_another_users_task(
    process_fleet: ProcessFleet, tasks: Path
) -> None:
    waiting = process_fleet.hub.submit(
        {"command": ["sh", "-c", "echo ann > secret; echo $PWD; exec sleep 600"], "user_id": "ann"}
    )["id"]
    folder = until(lambda: b"".join(process_fleet.hub.logs(waiting)).decode().strip(), "ann's task runs")
    supervisor = int((process_fleet.state / "workers" / "w" / "supervisor.lock").read_text())
    worker = process_fleet.processes["w"].pid
    own = next(one for one in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _cwd(one) == folder)
    of_worker = process_fleet.state / "workers" / "w"
    tries = {
        "ann's file": f"cat {folder}/secret",
        "ann's folder": f"ls {folder}",
        "ann's environment": f"cat /proc/{own}/environ",
        "ann's folder by her process": f"ls /proc/{own}/cwd/",
        "who else is there": f"ls {tasks} || ls {tasks}/w || ls {tasks}/w/attempts || ls {tasks}/w/checkpoints",
        "a folder of its own": f"mkdir {tasks}/w/attempts/mine || mkdir {tasks}/w/mine || mkdir {tasks}/mine",
        "the worker's environment": f"cat /proc/{worker}/environ",
        "the supervisor's environment": f"cat /proc/{supervisor}/environ",
        "the worker's memory": f"head -c 1 /proc/{worker}/mem",
        "the hub's token": f"cat {process_fleet.state}/admin.token || cat {process_fleet.state}/join.token",
        "the worker's folder": f"ls {of_worker} || cat {of_worker}/journal || cat {of_worker}/*token*",
        "an end of the supervisor": f"kill -9 {supervisor}",
        "an end of the worker": f"kill -9 {worker}",
        "an end of ann's task": f"kill -9 {own}",
        "root's files": "cat /etc/shadow",
        "root by a program": "su -c id || sudo -n id || unshare -r true && mount -t tmpfs x /mnt",
    }
    for name in os.listdir(of_worker):
        tries[f"the worker's {name}"] = f"cat {of_worker}/{name}"
    script = "\n".join(
        f"if ({attempt}) >/dev/null 2>&1; then echo {json.dumps(what)}; fi" for what, attempt in tries.items()
    )
    text, _ = ran(process_fleet, "bob", script)
    assert text == "", "what it got at"
    assert process_fleet.hub.job(waiting)["state"] == "running"
    process_fleet.hub.cancel(waiting)


def _cwd(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def test_links_that_it_leaves_lead_the_worker_to_nothing(process_fleet: ProcessFleet, tmp_path: Path) -> None:
    """The log, the outputs and the checkpoint are read by the worker: as whoever left them, not as root."""
    token = process_fleet.state / "admin.token"
    text, _ = ran(process_fleet, "bob", f"echo before; rm ../log; ln -s {token} ../log", state="succeeded")
    assert token.read_text().strip() not in text
    text, job = ran(
        process_fleet, "bob", f"ln -s {token} $OSTLER_OUT/metrics.jsonl; ln -s /etc/shadow $OSTLER_OUT/x", "failed"
    )
    assert "outputs were not packed" in job["reason"]
    script = f"rmdir ../out; ln -s {process_fleet.state} ../out"
    _, job = ran(process_fleet, "bob", script, state="failed")
    assert not job["artifact_id"]
    _, job = ran(process_fleet, "bob", "mkdir real; ln -s /etc/shadow real/s", outputs=["real"], state="failed")
    assert not job["artifact_id"]


def test_what_it_leaves_is_taken_and_its_checkpoint_comes_back_to_it(
    process_fleet: ProcessFleet, tmp_path: Path
) -> None:
    script = (
        "if [ -e $OSTLER_CHECKPOINT/step ]; then cp $OSTLER_CHECKPOINT/step $OSTLER_OUT/; exit 0; fi; "
        "echo 7 > $OSTLER_CHECKPOINT/step; exit 3"
    )
    _, job = ran(process_fleet, "ann", script, max_attempts=3, max_retries=1)
    stream, _ = process_fleet.hub.open_artifact(job["artifact_id"])
    packed = tmp_path / "a.tar"
    packed.write_bytes(b"".join(stream.chunks()))
    with tarfile.open(packed) as archive:
        file = archive.extractfile("step")
        assert file is not None and file.read() == b"7\n"


def test_a_user_whom_the_operator_named_nobody_for_is_not_run_here(process_fleet: ProcessFleet) -> None:
    text, job = ran(process_fleet, "eve", "id", state="failed")
    assert "names nobody" in job["reason"]
    assert text == ""


def test_the_workers_folder_is_roots_alone(process_fleet: ProcessFleet, tasks: Path) -> None:
    folder = process_fleet.state / "workers" / "w"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for place in (tasks, tasks / "w", tasks / "w" / "attempts", tasks / "w" / "checkpoints"):
        found = place.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o711)
