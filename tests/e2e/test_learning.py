"""What a job took, measured where it ran, shown, learnt, and asked for the next time."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.paddock import Paddock, paddock

PYTHON = (sys.executable, "-SsE", "-c")


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paddock]:
    with paddock(tmp_path_factory.mktemp("yard")) as made:
        made.start_worker("w")
        made.await_workers("w")
        yield made


def ended(yard: Paddock, command: list[str], **more: Any) -> dict[str, Any]:
    job_id = yard.hub.submit({"command": command, **more})["id"]
    yard.fleet.wait(job_id, timeout=20)
    return dict(yard.hub.job(job_id))


def test_a_job_shows_what_it_took_and_its_like_asks_for_that(yard: Paddock) -> None:
    command = [*PYTHON, "x = bytearray(300 << 20); del x"]
    job = ended(yard, command, name="fill-1")
    [attempt] = job["attempts"]
    assert 300 <= attempt["peak_memory_mib"] < 400
    assert attempt["run_s"] > 0
    assert attempt["peak_vram_mib"] is None
    held = {"command": command, "name": "fill-2", "min_memory_gb": "auto", "labels": ["no = where"]}
    waiting = yard.hub.submit(held)["id"]
    needs = yard.hub.why(waiting)["needs"]
    assert needs == "memory auto: 512 MiB learnt from 1 run"
    yard.kill("hub")
    yard.start_again("hub")
    assert yard.hub.why(waiting)["needs"] == needs


def test_a_job_that_ran_out_of_gpu_memory_is_told_so_and_what_to_do(yard: Paddock) -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    job = ended(yard, [*PYTHON, f"import sys; print({said!r}); print('bye'); sys.exit(1)"])
    assert job["state"] == "failed"
    assert job["reason"].startswith(f"out of GPU memory (exit code 1): {said}; ask for more with min_vram_gb")
