"""How much memory attempts take at most, measured on real processes."""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.runtime.tasks import WAIT_S, A, B, Ends, Signpost, launch, python

from ostler.runtime.process import ProcessRuntime

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells the memory of what runs")


async def test_the_peak_of_a_short_task_comes_with_its_end(runtime: ProcessRuntime, ends: Ends) -> None:
    await runtime.launch(python(A, "x = bytearray(100 << 20); del x"))
    await runtime.launch(launch(B, "true"))
    large, small = await ends.of(A), await ends.of(B)
    assert 100 <= large.peak_memory_mib < 160
    assert small.peak_memory_mib < 60
    assert large.ran_s > 0 and small.ran_s > 0


TREE = """
import os, sys, time
main = os.getpid()
for _ in range(2):
    if os.getpid() == main:
        os.fork()
mine = os.urandom(60 << 20)
if os.getpid() == main:
    open(sys.argv[1]).read(1)
else:
    time.sleep(600)
"""
"""Three processes of 60 MiB each: none of them alone is as large as all together."""


async def reaches(runtime: ProcessRuntime, attempt: str, mib: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while runtime.peaks().get(attempt, 0) < mib:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@needs_proc
async def test_while_it_runs_the_whole_tree_is_looked_at_and_told(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    await runtime.launch(launch(A, sys.executable, "-SsE", "-c", TREE, str(post.path), grace_s=0.1))
    await reaches(runtime, A, 180)
    post.write("go")
    assert 180 <= (await ends.of(A)).peak_memory_mib < 300
    assert A not in runtime.peaks()


@needs_proc
async def test_a_peak_that_a_worker_was_told_of_is_in_the_end_that_the_next_one_hears(
    runtime: ProcessRuntime, post: Signpost, tmp_path: Path
) -> None:
    script = f"x = b'1' * (80 << 20); del x; open({str(post.path)!r}).read(1)"
    await runtime.launch(python(A, script))
    await runtime.close(stop_tasks=False)
    again = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    [held] = await again.open()
    assert held.ended is None
    post.write("go")
    ends = Ends(again)
    assert (await ends.of(A)).peak_memory_mib >= 80
    await again.close(stop_tasks=True)


@needs_proc
async def test_what_a_tree_takes_at_the_moment_is_told_while_it_runs(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    busy = f"x = b'1' * (50 << 20)\nfor _ in range(2_000_000): pass\nopen({str(post.path)!r}).read(1)"
    await runtime.launch(python(A, busy))
    async with asyncio.timeout(WAIT_S):
        while A not in runtime.samples():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    mib, cpu_ms = runtime.samples()[A]
    assert 50 <= mib < 120 and cpu_ms > 0
    post.write("go")
    await ends.of(A)
    assert A not in runtime.samples()
