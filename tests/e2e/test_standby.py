"""Two hubs on one PostgreSQL ledger: one leads, the other stands by and takes over; whoever led before writes nothing."""

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.paddock import Diary, until
from tests.e2e.test_kills import Work
from tests.e2e.twins import REFUSED, TAKES_OVER_S, WHO, Submitter, Twins, twins
from tests.ledger.server import server

SPEC = b'{"command": ["true"], "name": "%s"}'


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """For all tests here, each of which leaves one hub that leads and one that stands by."""
    with twins(tmp_path_factory.mktemp("twins"), server().new_database(), "box") as made:
        yield made


def test_a_standby_answers_from_the_ledger_and_says_where_to_ask_for_the_rest(yard: Twins) -> None:
    job_id = yard.hub.submit({"command": ["true"], "name": "one"})["id"]
    yard.fleet.wait(job_id, timeout=30)
    assert yard.health("b") == {"status": "ok", "version": yard.health("a")["version"], "role": "standby"}
    for path in (f"/v1/jobs/{job_id}", "/v1/jobs?name=one", f"/v1/jobs/{job_id}/events"):
        assert yard.get("b", path)[:2] == yard.get("a", path)[:2]
    refused = [yard.get("b", path) for path in ("/v1/workers", "/v1/status", f"/v1/jobs/{job_id}/logs")]
    for status, document, headers in [*refused, yard.get("b", "/v1/jobs", data=SPEC % b"two")]:
        assert (status, document["leader"], headers["Ostler-Leader"]) == (503, yard.urls["a"], yard.urls["a"])
    ann = {"Authorization": f"Bearer {yard.hub.create_token('user', 'ann')['token']}"}
    assert yard.get("b", "/v1/me", headers=ann)[1] == {"role": "user", "user": "ann"}
    assert yard.get("b", f"/v1/jobs/{job_id}", headers=ann)[0] == 404, "other users' jobs are not there here either"
    assert yard.get("b", "/v1/jobs", headers={"Authorization": "Bearer nobody"})[0] == 401
    until(lambda: len(yard.hub.status()["hubs"]) == 2, "the leader has seen both")
    screen = yard.run("status").stdout
    assert f"{yard.urls['a']} leader" in screen and f"{yard.urls['b']} standby" in screen and "term 1" in screen


def test_the_doctor_sees_both_hubs_and_a_backup_is_left_to_the_servers_own_tools(yard: Twins, tmp_path: Path) -> None:
    told = yard.run("doctor").stdout
    assert f"{yard.urls['a']}, leader, term 1" in told and f"{yard.urls['b']}, standby" in told
    assert "leads, term 1, hubs connected: 2" in told
    done = yard.run("backup", str(tmp_path / "file"), code=2)
    assert "pg_dump --format=custom" in done.stderr and str(yard.store) in done.stderr
    assert "pg_restore" in yard.run("restore", str(tmp_path / "file"), code=2).stderr


def test_a_killed_leader_is_followed_and_no_task_notices(yard: Twins, tmp_path: Path) -> None:
    work, load = Work(yard, Diary(tmp_path / "diary")), Submitter(yard)
    load.grow()
    leader = yard.leader()
    term = yard.health(leader)["term"]
    yard.kill(leader)
    work.end_early()
    yard.await_role(yard.other(leader), "leader")
    assert yard.health(yard.other(leader))["term"] == term + 1
    load.grow()
    load.stop()
    work.end_all()
    work.check()
    load.check()
    yard.start_again(leader)


def test_a_leader_that_was_paused_writes_nothing_when_it_goes_on_and_stands_by(yard: Twins, tmp_path: Path) -> None:
    work, load = Work(yard, Diary(tmp_path / "diary")), Submitter(yard)
    load.grow()
    leader = yard.leader()
    yard.pause(leader)
    work.end_early()
    yard.await_role(yard.other(leader), "leader")
    load.grow()
    load.stop()
    until(lambda: yard.worker("box")["status"] == "ready", "the worker has left a connection that nobody closed", 30)
    with ThreadPoolExecutor(2) as asking:
        # Both reach a hub that believes that it leads, as soon as it goes on.
        late = asking.submit(yard.get, leader, "/v1/jobs", TAKES_OVER_S, data=SPEC % b"late", method="POST")
        stale = asking.submit(yard.get, leader, "/v1/workers", TAKES_OVER_S)
        yard.go_on(leader)
        assert {status_of(late), status_of(stale)} <= {0, 503}
    yard.await_role(leader, "standby")
    log = (yard.folder / f"{leader}.log").read_text()
    assert log.count(REFUSED) == 1 and "Traceback" not in log
    assert not list(yard.hub.all_jobs(name="late"))
    work.end_all()
    work.check()
    load.check()


def test_a_leader_that_is_told_to_stop_is_followed_with_all_that_it_kept(yard: Twins) -> None:
    leader, other = yard.leader(), yard.other(yard.leader())
    service = yard.hub.submit({"name": "who", "type": "service", "command": [sys.executable, "-c", WHO, "{port}"]})
    job = yard.fleet.submit_command(["sh", "-c", "echo words; echo more > $OSTLER_OUT/file"])
    assert job.wait(timeout=TAKES_OVER_S)["state"] == "succeeded"
    _, first, _ = yard.get(leader, "/services/who/")
    model = yard.call_model(leader)
    assert yard.terminate(leader) == 0
    yard.await_role(other, "leader")
    assert yard.get(other, "/services/who/", TAKES_OVER_S)[1] == first, "the same process answers"
    until(lambda: answers(yard, other) == model, "the same model's process answers", TAKES_OVER_S)
    assert job.logs() == "words\n"
    assert yard.hub.verify_artifact(job.status()["artifact_id"])["ok"]
    yard.fleet.cancel(service["id"])
    yard.start_again(leader)
    assert yard.terminate(leader) == 0, "a standby stops as well"
    yard.start_again(leader)


def test_a_hub_without_the_store_of_the_others_does_not_start(yard: Twins, tmp_path: Path) -> None:
    words = ("hub", "--port", "0", "--state-dir", str(tmp_path / "c"), "--store", str(tmp_path / "other"))
    done = yard.run(*words, code=1)
    assert "goes with another folder of logs and artifacts" in done.stderr and "--store DIR" in done.stderr


def answers(yard: Twins, name: str) -> dict[str, Any]:
    """What the model says by this hub's gateway, once that listens."""
    try:
        return yard.call_model(name)
    except OSError:
        return {}


def status_of(asked: "Future[Any]") -> int:
    """0: the hub closed the connection."""
    try:
        return int(asked.result(TAKES_OVER_S)[0])
    except OSError:
        return 0
