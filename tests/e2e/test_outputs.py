"""What tasks leave, from the worker's disk to the hub's: packed, uploaded, recorded, the same wherever it was made."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process_fleet import HURRIED, ProcessFleet, process_fleet, until

TRAIN = """
mkdir -p "$1/weights" runs
echo 0.25 > "$1/weights/layer"
echo '{"loss": 2.0}' > "$1/metrics.jsonl"
echo '{"loss": 0.5}' >> "$1/metrics.jsonl"
echo '{"accuracy": 0.75}'
echo done > runs/report
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("fleet")) as made:
        for name in ("a", "b"):
            made.start_worker(name, offer={"labels": {"stall": name}})
        made.await_workers("a", "b")
        yield made


def ended(fleet: ProcessFleet, command: list[str], **more: Any) -> dict[str, Any]:
    job_id = fleet.hub.submit({"command": command, **more})["id"]
    return dict(fleet.client.wait(job_id, timeout=60))


def stored(fleet: ProcessFleet, sha256: str) -> bytes:
    [path] = {one.resolve() for one in (fleet.state / "artifacts").rglob(sha256) if one.is_file()}
    return Path(path).read_bytes()


def test_the_same_job_on_two_workers_gives_the_same_artifact(fleet: ProcessFleet) -> None:
    command = ["sh", "-c", TRAIN, "train", "$OSTLER_OUT"]
    jobs = [ended(fleet, command, outputs=["runs"], labels=[f"stall == {name}"]) for name in ("a", "b")]
    assert [(job["state"], job["worker"]) for job in jobs] == [("succeeded", "a"), ("succeeded", "b")], jobs
    [sha256] = {job["artifact_id"] for job in jobs}
    data = stored(fleet, sha256)
    assert hashlib.sha256(data).hexdigest() == sha256
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["metrics.jsonl", "runs", "runs/report", "weights", "weights/layer"]


def test_metrics_are_part_of_the_jobs_document(fleet: ProcessFleet) -> None:
    job = ended(fleet, ["sh", "-c", TRAIN, "train", "$OSTLER_OUT"])
    assert job["metrics"] == {"loss": 0.5, "accuracy": 0.75}


def test_a_missing_output_fails_the_job_and_is_named(fleet: ProcessFleet) -> None:
    job = ended(fleet, ["true"], outputs=["model.bin"])
    assert (job["state"], job["artifact_id"]) == ("failed", None)
    assert "the output 'model.bin' is missing" in job["reason"]


def test_a_failed_job_says_what_it_said_last(fleet: ProcessFleet) -> None:
    job = ended(fleet, ["sh", "-c", "echo fine; echo 'ValueError: bad shape' >&2; exit 4"])
    assert (job["state"], job["exit_code"]) == ("failed", 4)
    assert "exit code 4: ValueError: bad shape" in job["reason"]


def test_a_large_value_and_an_artifact_are_kept_apart(fleet: ProcessFleet) -> None:
    def both() -> bytes:
        import os
        from pathlib import Path

        Path(os.environ["OSTLER_OUT"], "x").write_text("out")
        return b"x" * 300_000

    job = fleet.client.submit(both)
    assert job.result(timeout=60) == b"x" * 300_000
    with tarfile.open(fileobj=io.BytesIO(stored(fleet, fleet.hub.job(job.id)["artifact_id"]))) as tar:
        assert tar.getnames() == ["x"]


def test_a_hub_that_is_killed_while_outputs_arrive_has_them_all_after_its_restart(tmp_path: Path) -> None:
    with process_fleet(tmp_path, "a", program=HURRIED) as fleet:
        script = 'head -c 80000000 /dev/zero > "$OSTLER_OUT/weights"'
        job_id = fleet.hub.submit({"command": ["sh", "-c", script]})["id"]
        until(lambda: arrived(fleet), "the first bytes have arrived")
        fleet.kill("hub")
        assert arrived(fleet)
        fleet.start_again("hub")
        job = fleet.client.wait(job_id, timeout=60)
        assert (job["state"], len(job["attempts"])) == ("succeeded", 1), job
        data = stored(fleet, job["artifact_id"])
        assert (len(data) > 80_000_000, hashlib.sha256(data).hexdigest()) == (True, job["artifact_id"])


def arrived(fleet: ProcessFleet) -> int:
    """Bytes of an upload that is not whole yet; none any more once it is."""
    try:
        return sum(part.stat().st_size for part in (fleet.state / "artifacts" / ".arriving").glob("*"))
    except FileNotFoundError:
        return 0
