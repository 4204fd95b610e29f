"""A hub whose store is a bucket, with a worker: the bytes go past the hub, and nothing is lost while the store is away."""

import hashlib
import io
import json
import os
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
from tests.e2e.wire import Wire
from tests.process_fleet import ProcessFleet, process_fleet, until
from tests.store.s3_server import KEY, REGION, SECRET, Server, serving

import ostler
from ostler.client import Patience, snapshots
from ostler.store.bucket import Client

SIZE = 3_000_000
SMALL = 1_000_000
"""More than all that a job says to the hub and hears from it, less than its files have."""
TRAIN = """
import json, os, sys
out = os.environ["OSTLER_OUT"]
data = open("data.bin", "rb").read()
open(out + "/weights.bin", "wb").write(data[::-1])
open(out + "/metrics.jsonl", "w").write(json.dumps({"loss": 0.5}))
print("trained on", len(data))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Server) -> Client:
    return Client(server.bucket("lab"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, server: Server, client: Client) -> Iterator[ProcessFleet]:
    settings = f"""
store = "s3://lab/some/where"
[s3]
endpoint = "{server.url}"
region = "{REGION}"
access_key_id = "{KEY}"
secret_access_key = "{SECRET}"
"""
    with process_fleet(tmp_path_factory.mktemp("fleet"), settings=settings) as made:
        yield made


@pytest.fixture(scope="module")
def wire(fleet: ProcessFleet) -> Iterator[Wire]:
    """Between the hub and everybody else."""
    made = Wire(fleet.url)
    fleet.start_worker("a", through=made.url)
    fleet.await_workers("a")
    yield made
    made.close()


def keys(client: Client, kind: str) -> list[str]:
    return [key.rpartition("/")[2] for key, _ in client.keys(client.key(kind, ""))]


def train(folder: Path, wire: Wire, fleet: ProcessFleet) -> tuple[str, bytes]:
    """A job that takes a folder along and leaves another; its id, and what was in the folder."""
    data = os.urandom(SIZE)
    folder.mkdir()
    (folder / "data.bin").write_bytes(data)
    (folder / "train.py").write_text(TRAIN)
    with ostler.connect(wire.url, fleet.token, fleet.state, patience=Patience(tries=3)) as client:
        snapshot = snapshots.send(client.hub, folder)
        spec = {"command": ["python3", "train.py"], "snapshot_id": snapshot.id}
        return str(client.hub.submit(spec)["id"]), data


def test_a_jobs_bytes_go_past_the_hub_and_are_fetched_past_it(
    fleet: ProcessFleet, wire: Wire, client: Client, server: Server, tmp_path: Path
) -> None:
    before, received, sent = wire.passed, server.received, server.sent
    job_id, data = train(tmp_path / "work", wire, fleet)
    job = fleet.client.wait(job_id, timeout=60)
    assert job["state"] == "succeeded", (job, fleet.log_of("hub"), fleet.log_of("a"))
    assert job["metrics"] == {"loss": 0.5}
    passed = wire.passed - before
    assert passed < SMALL, f"{passed} bytes went through the hub"
    assert server.received - received > 2 * SIZE and server.sent - sent > SIZE
    artifact = job["artifact_id"]
    assert keys(client, "artifacts/objects") == [artifact]
    assert keys(client, "snapshots/objects") == [job["spec"]["snapshot_id"]]
    assert not list((fleet.state / "artifacts").glob("objects/*/*"))

    before = wire.passed
    fleet.check_run("artifacts", "get", artifact, "--to", str(tmp_path / "got.tar"), "--hub", wire.url)
    got = (tmp_path / "got.tar").read_bytes()
    assert hashlib.sha256(got).hexdigest() == artifact
    with tarfile.open(fileobj=io.BytesIO(got)) as tar:
        weights = tar.extractfile("weights.bin")
        assert weights is not None and weights.read() == data[::-1]
    assert wire.passed - before < SMALL
    shown = json.loads(fleet.check_run("artifacts", "show", artifact, "--json").stdout)
    assert shown["path"] == f"s3://lab/some/where/artifacts/objects/{artifact[:2]}/{artifact}"
    assert "trained on" in fleet.check_run("logs", job_id).stdout
    fleet.check_run("artifacts", "verify", artifact)


def test_whoever_cannot_reach_the_store_is_given_the_bytes_by_the_hub(
    fleet: ProcessFleet, wire: Wire, tmp_path: Path
) -> None:
    job_id, _ = train(tmp_path / "work", wire, fleet)
    artifact = fleet.client.wait(job_id, timeout=60)["artifact_id"]
    headers = {"Authorization": f"Bearer {fleet.token}"}
    url = f"{fleet.url}/v1/model/{artifact}"
    whole = urllib3.request("GET", url, headers=headers)
    assert hashlib.sha256(whole.data).hexdigest() == artifact
    part = urllib3.request("GET", url, headers=headers | {"Range": "bytes=1000-1999"})
    assert (part.status, part.data) == (206, whole.data[1000:2000])
    assert part.headers["Content-Range"] == f"bytes 1000-1999/{len(whole.data)}"
    asked = urllib3.request("GET", f"{url}?direct=1", headers=headers, redirect=False)
    assert asked.status == 307 and SECRET not in asked.headers["Location"]
    assert urllib3.request("GET", asked.headers["Location"]).data == whole.data


def test_a_tasks_end_waits_until_the_store_is_back(
    fleet: ProcessFleet, wire: Wire, server: Server, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = f'while [ ! -e {gate} ]; do sleep 0.05; done; head -c {SIZE} /dev/urandom > "$OSTLER_OUT/x"'
    job_id = fleet.hub.submit({"command": ["sh", "-c", script]})["id"]
    until(lambda: fleet.hub.job(job_id)["state"] == "running", "it runs")
    server.away, requests = True, server.requests
    try:
        gate.touch()
        until(lambda: server.requests > requests, "the store was asked for")
        refused = fleet.check_run("doctor", code=1)
        assert "failed  bucket" in refused.stdout and "SlowDown" in refused.stdout
        assert fleet.hub.job(job_id)["state"] == "running"
    finally:
        server.away = False
    job = fleet.client.wait(job_id, timeout=60)
    assert (job["state"], len(job["attempts"])) == ("succeeded", 1), job
    fleet.check_run("artifacts", "verify", job["artifact_id"])


def test_the_next_hub_knows_what_the_bucket_has_even_if_its_own_notes_are_lost(
    fleet: ProcessFleet, wire: Wire, tmp_path: Path
) -> None:
    job_id, _ = train(tmp_path / "work", wire, fleet)
    artifact = fleet.client.wait(job_id, timeout=60)["artifact_id"]
    assert fleet.terminate("hub") == 0
    [note] = (fleet.state / "known").rglob(f"artifacts/*/{artifact}")
    note.unlink()
    fleet.start_again("hub")
    until(note.exists, "the hub has looked for it")
    assert json.loads(fleet.check_run("artifacts", "show", artifact, "--json").stdout)["path"]
    fleet.check_run("artifacts", "verify", artifact)


def test_a_hub_that_is_told_to_stop_does_not_wait_for_a_store_that_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = f"""
store = "s3://lab"
[s3]
endpoint = "http://127.0.0.1:{silent.getsockname()[1]}"
region = "{REGION}"
access_key_id = "{KEY}"
secret_access_key = "{SECRET}"
"""
        with process_fleet(tmp_path, settings=settings) as made:
            url = f"{made.url}/v1/snapshots/{'0' * 64}/direct?size=5"
            with pytest.raises(urllib3.exceptions.ReadTimeoutError):
                urllib3.request(
                    "POST", url, headers={"Authorization": f"Bearer {made.token}"}, timeout=1, retries=False
                )
            assert made.terminate("hub") == 0


def test_what_applies_and_how_the_store_is_are_shown_without_its_key(fleet: ProcessFleet, server: Server) -> None:
    shown = fleet.check_run("config", "show", "--json")
    [store] = [row for row in json.loads(shown.stdout)["settings"] if row["setting"] == "store"]
    assert (store["value"], store["from"]) == ("s3://lab/some/where", str(fleet.state / "ostler.toml"))
    found = fleet.check_run("doctor")
    assert f"ok      bucket   s3://lab/some/where at {server.url}, written, read and removed from" in found.stdout
    for text in (shown.stdout, found.stdout, fleet.log_of("hub")):
        assert SECRET not in text and KEY not in text
