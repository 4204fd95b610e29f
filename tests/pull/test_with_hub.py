"""The worker against a real hub: its routes, its ledger, its store; and that hub's death in the middle of a job."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process_fleet import until
from tests.protocol.process_hub import ProcessHub
from tests.pull.bare import PullWorker
from tests.pull.scripted_hub import PATIENCE_S

from ostler import pull

MANIFEST = """
[defaults]
command = ["sh", "-c", '''
echo "{model} begins"
echo '{"epoch": 1}'
until test -e "$GO"; do sleep 0.05; done
echo "$2" > "$1/model.txt"
echo '{"loss": 0.25}' > "$1/metrics.jsonl"
''', "train", "{out}", "{hyper...}"]

[[jobs]]
name = "small"
model = "gbt"
mode = "realistic"
hyper = { depth = 6 }

[[jobs]]
name = "large"
model = "mlp"
min_ram_gib = 1000000.0
"""


class Api:
    def __init__(self, hub: ProcessHub) -> None:
        self._hub = hub

    def __call__(self, method: str, path: str, body: bytes = b"") -> bytes:
        headers = {"Authorization": f"Bearer {self._hub.token('admin')}"}
        asked = urllib.request.Request(self._hub.url + path, data=body or None, headers=headers, method=method)
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            found: bytes = answer.read()
            return found

    def job(self, name: str) -> dict[str, Any]:
        listed = json.loads(self("GET", "/v1/jobs"))["jobs"]
        (job_id,) = (job["id"] for job in listed if job["name"] == name)
        found: dict[str, Any] = json.loads(self("GET", f"/v1/jobs/{job_id}"))
        return found


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ProcessHub]:
    running = ProcessHub(tmp_path / "state")
    running.start()
    yield running
    if running.running:
        running.stop()


def test_a_job_of_the_manifest_survives_the_hub_s_death_and_its_model_is_kept(hub: ProcessHub, tmp_path: Path) -> None:
    api = Api(hub)
    api("PUT", "/v1/manifest", MANIFEST.replace("$GO", str(tmp_path / "go")).encode())
    worker = PullWorker(tmp_path, hub.url, "--jobs", "1", token=hub.token("join"))
    try:
        until(lambda: api.job("small")["status"] == "running", "the job runs", PATIENCE_S)
        hub.kill()
        hub.start()
        (tmp_path / "go").touch()
        code, said = worker.end()
    finally:
        worker.close()
    assert code == 0, said
    job = api.job("small")
    assert (job["status"], len(job["attempts"])) == ("completed", 1), said
    assert api("GET", f"/v1/jobs/{job['id']}/logs") == b'gbt begins\n{"epoch": 1}\n'
    (artifact,) = json.loads(api("GET", "/v1/artifacts"))["artifacts"]
    assert artifact["id"] == job["artifact_id"]
    out = tmp_path / "expected"
    out.mkdir()
    (out / "model.txt").write_text("--depth\n")
    (out / "metrics.jsonl").write_text('{"loss": 0.25}\n')
    assert pull.pack(out, tmp_path / "expected.tar") == artifact["id"]
    assert api("GET", f"/v1/model/{artifact['id']}") == (tmp_path / "expected.tar").read_bytes()
    code, said = PullWorker(tmp_path, hub.url, "--once", token=hub.token("join")).end()
    assert code == 5
    assert "nothing to do: large: needs" in said
