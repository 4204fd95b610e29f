"""Two hubs on one PostgreSQL ledger: one leads, the other stands by and takes over; whoever led before writes nothing."""

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.diary import Diary
from tests.e2e.two_hub_fleet import REFUSED, TAKES_OVER_S, WHO, Submitter, TwoHubFleet, two_hub_fleet
from tests.e2e.work import Work
from tests.ledger.server import server
from tests.process_fleet import until

SPEC = b'{"command": ["true"], "name": "%s"}'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHubFleet]:
    """For all tests here, each of which leaves one hub that leads and one that stands by."""
    with two_hub_fleet(tmp_path_factory.mktemp("fleet"), server().new_database(), "box") as made:
        yield made


def test_a_standby_answers_from_the_ledger_and_says_where_to_ask_for_the_rest(fleet: TwoHubFleet) -> None:
    job_id = fleet.hub.submit({"command": ["true"], "name": "one"})["id"]
    fleet.client.wait(job_id, timeout=60)
    assert fleet.health("b") == {"status": "ok", "version": fleet.health("a")["version"], "role": "standby"}
    for path in (f"/v1/jobs/{job_id}", "/v1/jobs?name=one", f"/v1/jobs/{job_id}/events"):
        assert fleet.get("b", path)[:2] == fleet.get("a", path)[:2]
    refused = [fleet.get("b", path) for path in ("/v1/workers", "/v1/status", f"/v1/jobs/{job_id}/logs")]
    for status, document, headers in [*refused, fleet.get("b", "/v1/jobs", data=SPEC % b"two")]:
        assert (status, document["leader"], headers["Ostler-Leader"]) == (503, fleet.urls["a"], fleet.urls["a"])
    ann = {"Authorization": f"Bearer {fleet.hub.create_token('user', 'ann')['token']}"}
    assert fleet.get("b", "/v1/me", headers=ann)[1] == {"role": "user", "user": "ann"}
    assert fleet.get("b", f"/v1/jobs/{job_id}", headers=ann)[0] == 404, "other users' jobs are not there here either"
    assert fleet.get("b", "/v1/jobs", headers={"Authorization": "Bearer nobody"})[0] == 401
    until(lambda: len(fleet.hub.status()["hubs"]) == 2, "the leader has seen both")
    screen = fleet.check_run("status").stdout
    assert f"{fleet.urls['a']} leader" in screen and f"{fleet.urls['b']} standby" in screen and "term 1" in screen


def test_the_doctor_sees_both_hubs_and_a_backup_is_left_to_the_servers_own_tools(
    fleet: TwoHubFleet, tmp_path: Path
) -> None:
    told = fleet.check_run("doctor").stdout
    assert f"{fleet.urls['a']}, leader, term 1" in told and f"{fleet.urls['b']}, standby" in told
    assert "leads, term 1, hubs connected: 2" in told
    done = fleet.check_run("backup", str(tmp_path / "file"), code=2)
    assert "pg_dump --format=custom" in done.stderr and str(fleet.store) in done.stderr
    assert "pg_restore" in fleet.check_run("restore", str(tmp_path / "file"), code=2).stderr


def test_a_killed_leader_is_followed_and_no_task_notices(fleet: TwoHubFleet, tmp_path: Path) -> None:
    work, load = Work(fleet, Diary(tmp_path / "diary")), Submitter(fleet)
    load.grow()
    leader = fleet.leader()
    term = fleet.health(leader)["term"]
    fleet.kill(leader)
    work.end_early()
    fleet.await_role(fleet.other(leader), "leader")
    assert fleet.health(fleet.other(leader))["term"] == term + 1
    load.grow()
    load.stop()
    work.end_all()
    work.check()
    load.check()
    fleet.start_again(leader)


def test_a_leader_that_was_paused_writes_nothing_when_it_goes_on_and_stands_by(
    fleet: TwoHubFleet, tmp_path: Path
) -> None:
    work, load = Work(fleet, Diary(tmp_path / "diary")), Submitter(fleet)
    load.grow()
    leader = fleet.leader()
    fleet.pause(leader)
    work.end_early()
    fleet.await_role(fleet.other(leader), "leader")
    load.grow()
    load.stop()
    until(lambda: fleet.worker("box")["status"] == "ready", "the worker has left a connection that nobody closed", 30)
    with ThreadPoolExecutor(2) as asking:
        # Both reach a hub that believes that it leads, as soon as it goes on.
        late = asking.submit(fleet.get, leader, "/v1/jobs", TAKES_OVER_S, data=SPEC % b"late", method="POST")
        stale = asking.submit(fleet.get, leader, "/v1/workers", TAKES_OVER_S)
        fleet.go_on(leader)
        assert {status_of(late), status_of(stale)} <= {0, 503}
    fleet.await_role(leader, "standby")
    log = (fleet.folder / f"{leader}.log").read_text()
    assert log.count(REFUSED) == 1 and "Traceback" not in log
    assert not list(fleet.hub.all_jobs(name="late"))
    work.end_all()
    work.check()
    load.check()


def test_a_leader_that_is_told_to_stop_is_followed_with_all_that_it_kept(fleet: TwoHubFleet) -> None:
    leader, other = fleet.leader(), fleet.other(fleet.leader())
    service = fleet.hub.submit({"name": "who", "type": "service", "command": [sys.executable, "-c", WHO, "{port}"]})
    job = fleet.client.submit_command(["sh", "-c", "echo words; echo more > $OSTLER_OUT/file"])
    assert job.wait(timeout=TAKES_OVER_S)["state"] == "succeeded"
    _, first, _ = fleet.get(leader, "/services/who/")
    model = fleet.call_model(leader)
    assert fleet.terminate(leader) == 0
    fleet.await_role(other, "leader")
    assert fleet.get(other, "/services/who/", TAKES_OVER_S)[1] == first, "the same process answers"
    until(lambda: answers(fleet, other) == model, "the same model's process answers", TAKES_OVER_S)
    assert job.logs() == "words\n"
    assert fleet.hub.verify_artifact(job.status()["artifact_id"])["ok"]
    fleet.client.cancel(service["id"])
    fleet.start_again(leader)
    assert fleet.terminate(leader) == 0, "a standby stops as well"
    fleet.start_again(leader)


def test_a_hub_without_the_store_of_the_others_does_not_start(fleet: TwoHubFleet, tmp_path: Path) -> None:
    words = ("hub", "--port", "0", "--state-dir", str(tmp_path / "c"), "--store", str(tmp_path / "other"))
    done = fleet.check_run(*words, code=1)
    assert "goes with another folder of logs and artifacts" in done.stderr and "--store DIR" in done.stderr


def answers(fleet: TwoHubFleet, name: str) -> dict[str, Any]:
    """What the model says by this hub's gateway, once that listens."""
    try:
        return fleet.call_model(name)
    except OSError:
        return {}


def status_of(asked: "Future[Any]") -> int:
    """0: the hub closed the connection."""
    try:
        return int(asked.result(TAKES_OVER_S)[0])
    except OSError:
        return 0
