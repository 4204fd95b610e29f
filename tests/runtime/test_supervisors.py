"""Tasks of one worker under two supervisors: who gets which, and what becomes of them when one of the two is gone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from tests.process_fleet import until
from tests.runtime.tasks import WAIT_S, A, B, Ends, Signpost, processes_of, shell, supervisor_pid
from tests.runtime.test_warm import Calls

from ostler.runtime.link import SupervisorUnreachable
from ostler.runtime.supervisors import SECOND, Supervisors

C = f"c-{os.getpid()}"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
async def both(state: Path) -> AsyncIterator[Supervisors]:
    runtime = Supervisors(state, idle_exit_s=5.0)
    await runtime.open()
    yield runtime
    await runtime.close(stop_tasks=True)


@pytest.fixture
async def ends(both: Supervisors) -> Ends:
    return Ends(both)


def keeper_of(attempt: str) -> int:
    """The process that started its main process."""
    (pid,) = processes_of(attempt)
    return psutil.Process(pid).ppid()


async def running(tmp_path: Path, runtime: Supervisors, attempt: str, **more: object) -> Signpost:
    """It has begun, and ends with the code that it is told."""
    begun, gate = Signpost(tmp_path / f"begun-{attempt}"), Signpost(tmp_path / f"gate-{attempt}")
    await runtime.launch(shell(attempt, f"echo > {begun.path}; read code < {gate.path}; exit $code", **more))
    await begun.read()
    return gate


async def test_a_worker_that_runs_one_task_at_a_time_has_one_supervisor(tmp_path: Path, state: Path) -> None:
    runtime = Supervisors(state, idle_exit_s=5.0, two=False)
    await runtime.open()
    await running(tmp_path, runtime, A)
    await running(tmp_path, runtime, B)
    assert keeper_of(A) == keeper_of(B) == supervisor_pid(state)
    assert not (state / SECOND).exists()
    await runtime.close(stop_tasks=True)


async def test_what_the_second_holds_is_taken_back_by_a_worker_that_needs_only_one(
    tmp_path: Path, state: Path, both: Supervisors
) -> None:
    gates = {attempt: await running(tmp_path, both, attempt) for attempt in (A, B)}
    await both.close(stop_tasks=False)
    again = Supervisors(state, idle_exit_s=5.0, two=False)
    assert sorted(one.attempt for one in await again.open()) == [A, B]
    ends = Ends(again)
    gates[B].write("3\n")
    assert (await ends.of(B)).exit_code == 3
    await running(tmp_path, again, C)
    assert keeper_of(C) == keeper_of(A) == supervisor_pid(state)
    await again.close(stop_tasks=True)


async def test_a_line_is_one_supervisor_s_and_two_lines_are_two_s(
    tmp_path: Path, both: Supervisors, ends: Ends
) -> None:
    gates = {attempt: await running(tmp_path, both, attempt) for attempt in (A, B)}
    keepers = {attempt: keeper_of(attempt) for attempt in (A, B)}
    assert len(set(keepers.values())) == 2
    for attempt in (A, B):
        before = attempt
        for number in range(3):
            name = f"{attempt}-{number}"
            await both.launch(shell(name, "echo $PPID", after=[before]))
            before = name
    for gate in gates.values():
        gate.write("0\n")
    for attempt in (A, B):
        await ends.of(f"{attempt}-2")
        logs = [int((both.folder(f"{attempt}-{number}") / "log").read_text()) for number in range(3)]
        assert logs == [keepers[attempt]] * 3


async def test_functions_stay_where_the_interpreters_are(tmp_path: Path, both: Supervisors, ends: Ends) -> None:
    """However much there is to do: it is a start that a supervisor is kept waiting by."""
    await running(tmp_path, both, A)
    calls = Calls(both, ends)
    assert len({await calls.value(os.getpid) for _ in range(3)}) == 1
    assert await calls.value(os.getppid) == supervisor_pid(both.folder(A).parent.parent) == keeper_of(A)


async def test_what_is_to_come_after_two_lines_is_refused(tmp_path: Path, both: Supervisors) -> None:
    for attempt in (A, B):
        await running(tmp_path, both, attempt)
    with pytest.raises(ValueError, match="not of one line"):
        await both.launch(shell(C, "true", after=[A, B]))


async def test_what_either_holds_is_taken_back_stopped_and_told_once(
    tmp_path: Path, state: Path, both: Supervisors
) -> None:
    gates = {attempt: await running(tmp_path, both, attempt) for attempt in (A, B)}
    await both.close(stop_tasks=False)
    assert all(processes_of(attempt) for attempt in (A, B))
    again = Supervisors(state, idle_exit_s=5.0)
    assert sorted(one.attempt for one in await again.open() if one.ended is None) == [A, B]
    ends = Ends(again)
    gates[A].write("4\n")
    assert (await ends.of(A)).exit_code == 4
    await again.stop(B, "enough", 0.1)
    assert (await ends.of(B)).stopped == "enough"
    for attempt in (A, B):
        await again.forget(attempt)
    await again.close(stop_tasks=True)
    await ends.finished()
    assert sorted(end.attempt for end in ends.seen) == [A, B]
    last = Supervisors(state, idle_exit_s=5.0)
    assert await last.open() == []
    await last.close(stop_tasks=True)


async def test_one_that_is_killed_costs_its_own_tasks_and_no_others(
    tmp_path: Path, state: Path, both: Supervisors, ends: Ends
) -> None:
    gate = await running(tmp_path, both, A)
    await running(tmp_path, both, B)
    assert keeper_of(B) == supervisor_pid(state / SECOND)
    os.kill(supervisor_pid(state / SECOND), signal.SIGKILL)
    assert "supervisor was killed" in (await ends.of(B)).error
    assert processes_of(A)
    gate.write("0\n")
    assert (await ends.of(A)).exit_code == 0
    await both.launch(shell(C, "exit 5"))
    assert (await ends.of(C)).exit_code == 5


async def test_what_was_forgotten_does_not_run_again_whoever_has_nothing_to_do(
    tmp_path: Path, both: Supervisors, ends: Ends
) -> None:
    """Launched a second time while its own supervisor is the busier one."""
    await running(tmp_path, both, A)
    ran = tmp_path / "ran"
    await both.launch(shell(B, f"echo >> {ran}"))
    await ends.of(B)
    await both.forget(B)
    await running(tmp_path, both, C)
    await both.launch(shell(f"{C}-2", "true", after=[C]))
    await both.launch(shell(B, f"echo >> {ran}"))
    await asyncio.to_thread(until, lambda: sum(end.attempt == B for end in ends.seen) == 2, "it is told again", WAIT_S)
    assert ran.read_text() == "\n"


async def test_where_there_can_be_no_second_the_first_starts_everything(
    tmp_path: Path, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkdir(state)
    (state / SECOND).write_text("not a folder")
    runtime = Supervisors(state, idle_exit_s=5.0)
    await runtime.open()
    assert "no second supervisor" in caplog.text
    for attempt in (A, B):
        await running(tmp_path, runtime, attempt)
    assert keeper_of(A) == keeper_of(B) == supervisor_pid(state)
    await runtime.close(stop_tasks=True)
    again = Supervisors(state, idle_exit_s=5.0)
    assert sorted(one.attempt for one in await again.open()) == [A, B]
    await again.close(stop_tasks=True)


async def test_a_second_that_may_hold_tasks_is_not_done_without(state: Path) -> None:
    (state / SECOND / "supervisor.lock").mkdir(parents=True)
    (state / SECOND / "journal").write_text('{"start":"a","task_id":"t"}\n')
    runtime = Supervisors(state, idle_exit_s=5.0, two=False)
    with pytest.raises(SupervisorUnreachable, match="did not start"):
        await runtime.open()
    await runtime.close(stop_tasks=True)


async def test_nothing_that_either_holds_is_pruned(tmp_path: Path, both: Supervisors, ends: Ends) -> None:
    for attempt in (A, B):
        await running(tmp_path, both, attempt)
    await both.launch(shell(C, "echo said"))
    await ends.of(C)
    await both.forget(C)
    assert await both.prune(keep_bytes=0, keep_age_s=0.0) > 0
    assert not (both.folder(C) / "log").exists()
    assert all((both.folder(attempt) / "work").is_dir() for attempt in (A, B))
