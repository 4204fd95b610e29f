"""The units under a real systemd: what it makes of them, and what becomes of a worker and its tasks there."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.enrol.private_systemd import CannotStart, PrivateSystemd, private_systemd, why_not
from tests.ports import free_port
from tests.process_fleet import ProcessFleet, process_fleet

from ostler.client.http import Hub
from ostler.units import systemd
from ostler.units.service import Service

ASKED_FOR = "OSTLER_TEST_SYSTEMD"
"""It starts an init system of its own in namespaces of its own: nothing to do by the way."""
pytestmark = [
    pytest.mark.skipif(ASKED_FOR not in os.environ, reason="`make systemd` runs these"),
    pytest.mark.skipif(ASKED_FOR in os.environ and bool(why_not()), reason=why_not() or "there is one"),
]
OSTLER = [sys.executable, "-m", "ostler"]
UNIT = "ostler-worker-box"
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSystemd]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(private_systemd(tmp_path_factory.mktemp("sd")))
        except CannotStart as error:
            pytest.skip(str(error))
        yield found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("hub")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def hub(fleet: ProcessFleet) -> Iterator[Hub]:
    with Hub(fleet.url, (fleet.state / "admin.token").read_text().strip()) as found:
        yield found


def until(happened: Callable[[], Any], what: str) -> Any:
    give_up_at = time.monotonic() + WITHIN_S
    while not (found := happened()):
        assert time.monotonic() < give_up_at, what
        time.sleep(0.05)
    return found


def test_systemd_passes_on_every_word_as_it_was_told(keeper: PrivateSystemd) -> None:
    folder = keeper.home / 'it\'s 100% "odd" $HOME \\ ä'
    folder.mkdir()
    python, out = folder / "python", folder / "told.json"
    python.symlink_to(sys.executable)
    program = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(sys.argv[1], 'w'))"
    words = (
        str(out),
        "",
        ";",
        "%h %% %i",
        "$HOME ${HOME} $$",
        "\\",
        '"',
        "'",
        "a\\nb\\x41",
        "# no",
        "\U0001f40e \u2028",
    )
    environment = {"ODD": '50% "of" $HOME \\ it\'s ä ', "PATH": "/usr/bin:/with space"}
    unit = systemd.unit(
        Service(
            name="odd",
            title="100% odd",
            argv=(str(python), "-P", "-c", program, *words),
            scope="user",
            user="root",
            stop_s=5,
            log="",
            environment=environment,
        )
    )
    keeper.unit("odd").write_text(unit)
    keeper.control("daemon-reload")
    keeper.control("start", "odd")
    until(lambda: out.exists() and out.read_text().endswith("}]"), "the program has written what it was told")
    told, found = json.loads(out.read_text())
    assert told == list(words)
    assert {name: found[name] for name in environment} == environment
    assert keeper.control("show", "--property=Description", "--value", "odd") == "100% odd"


def join(keeper: PrivateSystemd, hub: Hub, token: str, *more: str) -> str:
    done = keeper.run(*OSTLER, "join", hub.url, token, "--user", "--name", "box", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout + done.stderr)


def long_job(hub: Hub, file: Path) -> str:
    """One that runs until the file is there."""
    program = f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.05)"
    spec = {"command": [sys.executable, "-c", program], "min_cpu_cores": 1}
    job_id = str(hub.submit(spec)["id"])
    until(lambda: hub.job(job_id)["state"] == "running", "the job runs")
    return job_id


def is_there(hub: Hub) -> bool:
    return bool(hub.worker("box")["status"] != "offline")


def states(hub: Hub, job_id: str) -> list[str]:
    """All that it has been in."""
    return [event["state"] for event in hub.job_events(job_id)]


def attempts(hub: Hub, job_id: str) -> list[Any]:
    return list(hub.job(job_id)["attempts"])


def test_a_machine_joins_works_is_killed_updated_stopped_and_leaves(keeper: PrivateSystemd, hub: Hub) -> None:
    token = str(hub.create_token("join-once")["token"])
    said = join(keeper, hub, token, "--label", "zone=attic")
    assert "ok      ready" in said and "loginctl enable-linger" in said
    assert hub.worker("box")["labels"]["zone"] == "attic"
    unit = keeper.unit(UNIT).read_text()
    assert token not in unit and (keeper.state / "workers/box/enrolled.token").read_text().strip() not in unit
    assert keeper.control("is-enabled", UNIT) == "enabled"
    # Only so that the test need not wait for the next start as long as a machine does.
    quick = keeper.unit(UNIT).with_name(f"{UNIT}.service.d")
    quick.mkdir()
    (quick / "quick.conf").write_text("[Service]\nRestartSec=100ms\n")
    keeper.control("daemon-reload")

    # Killed, it is started again, and its task has not noticed.
    go_on = keeper.home / "go-on"
    job_id = long_job(hub, go_on)
    killed = keeper.main_pid(UNIT)
    keeper.run("kill", "-9", killed)
    until(lambda: keeper.main_pid(UNIT) not in ("0", killed), "systemd has started the worker again")
    until(lambda: states(hub, job_id)[-2:] == ["orphaned", "running"], "the worker has come back with its task")

    # Updated, it is another worker with the same task.
    join(keeper, hub, token, "--label", "zone=cellar")
    assert hub.worker("box")["labels"]["zone"] == "cellar"
    assert hub.job(job_id)["state"] == "running"
    go_on.touch()
    assert until(lambda: hub.job(job_id, wait=20)["state"] == "succeeded", "the job has ended")
    assert len(attempts(hub, job_id)) == 1

    # Stopped, it lets its task finish first.
    last_words = keeper.home / "last-words"
    draining = long_job(hub, last_words)
    keeper.control("stop", "--no-block", UNIT)
    until(lambda: hub.worker("box")["draining"], "the worker has said that it leaves")
    assert hub.job(draining)["state"] == "running"
    last_words.touch()
    until(lambda: keeper.run("systemctl", "--user", "is-active", UNIT).stdout.strip() == "inactive", "it has stopped")
    assert hub.job(draining)["state"] == "succeeded" and len(attempts(hub, draining)) == 1
    assert keeper.control("show", "--property=Result", "--value", UNIT) == "success"
    assert "supervisor" not in keeper.run("ps", "-eo", "args").stdout

    # Gone, it has left nothing behind.
    keeper.control("start", UNIT)
    until(lambda: is_there(hub), "the worker is back")
    done = keeper.run(*OSTLER, "leave")
    assert done.returncode == 0, done.stderr
    assert not keeper.unit(UNIT).exists()
    assert keeper.run("systemctl", "--user", "is-active", UNIT).stdout.strip() in ("inactive", "unknown")
    assert not (keeper.state / "workers/box/enrolled.token").exists()
    assert hub.worker("box")["status"] == "offline"
    assert [one for one in hub.tokens() if one["user"] == "box" and not one["revoked_at"]] == []


def test_a_worker_whose_token_is_revoked_is_not_started_again_and_again(keeper: PrivateSystemd, hub: Hub) -> None:
    join(keeper, hub, str(hub.create_token("join-once")["token"]))
    [own] = [one["id"] for one in hub.tokens() if one["user"] == "box" and not one["revoked_at"]]
    hub.revoke_token(own)
    until(lambda: keeper.run("systemctl", "--user", "is-active", UNIT).stdout.strip() == "failed", "it has given up")
    assert keeper.control("show", "--property=ExecMainStatus", "--value", UNIT) == "4"
    assert keeper.control("show", "--property=NRestarts", "--value", UNIT) == "0"
    done = keeper.run(*OSTLER, "leave")
    assert done.returncode == 0 and "did not know its token" in done.stderr
    assert not keeper.unit(UNIT).exists()


def test_a_worker_that_asks_over_http_is_a_service_too(keeper: PrivateSystemd, hub: Hub) -> None:
    token = str(hub.create_token("join-once")["token"])
    command = [*OSTLER, "join", hub.url, token, "--user", "--name", "puller", "--pull"]
    done = keeper.run(*command)
    assert done.returncode == 0 and "ok      ready" in done.stdout, done.stdout + done.stderr
    again = keeper.run(*command)
    assert again.returncode == 0 and "ok      ready" in again.stdout, again.stdout + again.stderr
    assert keeper.run(*OSTLER, "leave", "--name", "puller").returncode == 0
    assert not keeper.unit("ostler-worker-puller").exists()


def test_a_hub_is_installed_as_a_service(keeper: PrivateSystemd) -> None:
    state, port = keeper.home / "hub state", str(free_port())
    command = [*OSTLER, "hub", "--install", "--user", "--port", port, "--state-dir", str(state)]
    done = keeper.run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    with Hub(f"http://127.0.0.1:{port}", (state / "admin.token").read_text().strip()) as own:
        job_id = own.submit({"command": ["true"]})["id"]
        assert keeper.run(*command).returncode == 0, "a second time is an update"
        assert own.job(job_id)["state"] == "pending"
    keeper.control("stop", "ostler-hub")
    assert keeper.control("show", "--property=Result", "--value", "ostler-hub") == "success"
