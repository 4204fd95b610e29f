"""What a job took, measured where it ran, shown, learnt, and asked for the next time."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.process_fleet import ProcessFleet, process_fleet

PYTHON = (sys.executable, "-SsE", "-c")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("fleet")) as made:
        made.start_worker("w")
        made.await_workers("w")
        yield made


def ended(fleet: ProcessFleet, command: list[str], **more: Any) -> dict[str, Any]:
    job_id = fleet.hub.submit({"command": command, **more})["id"]
    fleet.client.wait(job_id, timeout=60)
    return dict(fleet.hub.job(job_id))


def test_a_job_shows_what_it_took_and_its_like_asks_for_that(fleet: ProcessFleet) -> None:
    command = [*PYTHON, "x = bytearray(300 << 20); del x"]
    job = ended(fleet, command, name="fill-1")
    [attempt] = job["attempts"]
    assert 300 <= attempt["peak_memory_mib"] < 400
    assert attempt["run_s"] > 0
    assert attempt["peak_vram_mib"] is None
    held = {"command": command, "name": "fill-2", "min_memory_gb": "auto", "labels": ["no = where"]}
    waiting = fleet.hub.submit(held)["id"]
    needs = fleet.hub.why(waiting)["needs"]
    assert needs == "memory auto: 512 MiB learnt from 1 run"
    fleet.kill("hub")
    fleet.start_again("hub")
    assert fleet.hub.why(waiting)["needs"] == needs


def test_a_job_that_ran_out_of_gpu_memory_is_told_so_and_what_to_do(fleet: ProcessFleet) -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    job = ended(fleet, [*PYTHON, f"import sys; print({said!r}); print('bye'); sys.exit(1)"])
    assert job["state"] == "failed"
    assert job["reason"].startswith(f"out of GPU memory (exit code 1): {said}; ask for more with min_vram_gb")
