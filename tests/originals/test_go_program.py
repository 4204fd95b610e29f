"""A worker written in Go, with encoding/json itself, at a real hub: `make go` builds and runs it."""

import asyncio
import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

SOURCE = Path(__file__).parent / "worker"
GOPATH = "/usr/share/gocode"
"""Where Debian's golang-github-gorilla-websocket-dev puts its package."""
PATIENCE_S = 60.0

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("OSTLER_TEST_GO"), reason="`make go` runs these"),
    pytest.mark.skipif(not shutil.which("go"), reason="go is missing: install golang"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("go")
    env = {**os.environ, "GOPATH": GOPATH, "GO111MODULE": "off", "GOCACHE": str(folder / "cache"), "CGO_ENABLED": "0"}
    done = subprocess.run(["go", "build", "-o", folder / "worker", "."], cwd=SOURCE, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return folder / "worker"


class GoProgram:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self, kind: str) -> list[str]:
        """The words of the next line about a message of this type; others are passed over."""
        assert self._process.stdout is not None and self._process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := (await self._process.stdout.readline()).decode().split():
                if line[0] == kind:
                    return line
            raise AssertionError(f"the worker ended: {(await self._process.stderr.read()).decode()}")


@pytest.fixture
async def worker(hub: RunningHub, program: Path) -> AsyncIterator[GoProgram]:
    url = hub.url.replace("http", "ws", 1) + "/v1/ws/worker"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(program, url, hub.join_token, "go-worker", stdout=pipe, stderr=pipe)
    try:
        yield GoProgram(process)
    finally:
        process.kill()
        await process.wait()


async def test_a_worker_in_go_runs_jobs_and_services_and_is_cancelled(api: Api, worker: GoProgram) -> None:
    await worker.line("no_work")
    job = await api.submit(command=["true"], min_cpu_cores=1.5, max_runtime_hours=2, metadata={"a": 1})
    assert await worker.line("job_assign") == ["job_assign", job, "batch", "2h0m0s"]
    await api.until_state(job, "succeeded")
    service = await api.submit(type="service", command=["sleep", "600"], health_check={"interval_secs": 0.5})
    await worker.line("job_assign")
    await api.until_state(service, "running")
    failing = await api.submit(command=["sh", "-c", "exit 3"])
    await api.until_state(failing, "failed")
    assert (await api.job(failing))["exit_code"] == 3
    await api.cancel(service)
    assert await worker.line("job_cancel") == ["job_cancel", service, "cancelled"]
    await api.until_state(service, "cancelled")


async def test_a_worker_in_go_hears_which_files_the_next_job_needs(api: Api, worker: GoProgram) -> None:
    await worker.line("no_work")
    data = b"files"
    sha256 = hashlib.sha256(data).hexdigest()
    assert (await api.call("PUT", f"/v1/snapshots/{sha256}", data=data)).status == 201
    first = await api.submit(command=["sleep", "600"])
    await api.until_state(first, "running")
    second = await api.submit(command=["true"], snapshot_id="snap", snapshot_sha=sha256)
    assert await worker.line("prewarm_hint") == ["prewarm_hint", second, sha256]
    await api.cancel(first)
    await api.until_state(second, "succeeded")
