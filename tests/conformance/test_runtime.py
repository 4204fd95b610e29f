"""What a worker may rely on, whatever runs its tasks."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
from tests.bridge.shell_batch import ShellBatch
from tests.process_fleet import until

from ostler.bridge.cluster import Cluster
from ostler.runtime.base import Ended, Held, Launch, Runtime
from ostler.runtime.fake import FakeMachine, FakeRuntime
from ostler.runtime.process import ProcessRuntime
from ostler.runtime.supervisors import Supervisors

WAIT_S = 60.0


class Machine(Protocol):
    """One machine, on which worker processes come and go."""

    def worker(self) -> Runtime: ...

    def task(self, attempt: str, *, deadline_s: float = 0.0, files: dict[str, bytes] | None = None) -> Launch:
        """One that prints `hello`, waits to be told how to end, and obeys SIGTERM."""
        ...

    def let_end(self, attempt: str, exit_code: int) -> None: ...

    async def begun(self, *attempts: str) -> None:
        """Until all of these have, where a launch alone does not see to that."""
        ...

    def pass_time(self, seconds: float) -> None: ...


class FakeOne:
    def __init__(self, folder: Path) -> None:
        self._now = 1000.0
        self._machine = FakeMachine(folder, lambda: self._now)
        self._machine.obeys_term = True

    def worker(self) -> Runtime:
        return FakeRuntime(self._machine)

    def task(self, attempt: str, *, deadline_s: float = 0.0, files: dict[str, bytes] | None = None) -> Launch:
        return Launch(
            attempt=attempt, task_id=f"t-{attempt}", argv=["x"], env={}, files=files or {}, deadline_s=deadline_s
        )

    def let_end(self, attempt: str, exit_code: int) -> None:
        self._machine.end(attempt, exit_code, output=b"hello\n")

    async def begun(self, *attempts: str) -> None:
        pass

    def pass_time(self, seconds: float) -> None:
        self._now += seconds
        self._machine.tick()


class RealOne:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gates: dict[str, int] = {}

    def worker(self) -> Runtime:
        return ProcessRuntime(self._folder / "state", idle_exit_s=5.0)

    def task(self, attempt: str, *, deadline_s: float = 0.0, files: dict[str, bytes] | None = None) -> Launch:
        gate = self._folder / f"gate-{attempt}"
        if attempt not in self._gates:
            os.mkfifo(gate)
            self._gates[attempt] = os.open(gate, os.O_RDWR | os.O_NONBLOCK)
        return Launch(
            attempt=attempt,
            task_id=f"t-{attempt}",
            argv=["sh", "-c", f"echo hello; read code < {gate}; exit $code"],
            env={"PATH": os.environ.get("PATH", os.defpath)},
            files=files or {},
            deadline_s=deadline_s,
        )

    def let_end(self, attempt: str, exit_code: int) -> None:
        os.write(self._gates[attempt], b"%d\n" % exit_code)

    async def begun(self, *attempts: str) -> None:
        pass

    def pass_time(self, seconds: float) -> None:
        """It does so by itself; the deadlines in here are short."""

    def close(self) -> None:
        for gate in self._gates.values():
            os.close(gate)


class TwoOfThem(RealOne):
    """Tasks are shared out among two supervisors."""

    def worker(self) -> Runtime:
        return Supervisors(self._folder / "state", idle_exit_s=5.0)


class InRooms(TwoOfThem):
    """Tasks are thought to be short, and are not."""

    def task(self, attempt: str, *, deadline_s: float = 0.0, files: dict[str, bytes] | None = None) -> Launch:
        task = super().task(attempt, deadline_s=deadline_s, files=files)
        task.anywhere = not files
        return task


class BatchOne(RealOne):
    """The processes are jobs of a batch system, and every worker is a bridge to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.system = ShellBatch()
        self._loops: list[asyncio.Task[None]] = []

    def worker(self) -> Runtime:
        cluster = Cluster(self.system, self._folder, look_s=0.02)
        runtime = cluster.runtime("here")
        cluster.take()
        self._loops.append(asyncio.get_running_loop().create_task(cluster.run()))
        return runtime

    async def begun(self, *attempts: str) -> None:
        logs = [self._folder / "workers/here/attempts" / attempt / "log" for attempt in attempts]
        await asyncio.to_thread(until, lambda: all(log.exists() for log in logs), f"{attempts} have begun", WAIT_S)

    def close(self) -> None:
        super().close()
        for loop in self._loops:
            assert not loop.done() or loop.exception() is None
            loop.cancel()
        self.system.close()


REAL = {"process": RealOne, "two processes": TwoOfThem, "rooms": InRooms, "batch": BatchOne}


@pytest.fixture(params=["fake", *REAL])
async def machine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Machine]:
    if request.param == "fake":
        yield FakeOne(tmp_path)
        return
    real = REAL[request.param](tmp_path)
    yield real
    last = real.worker()
    await last.open()
    await last.close(stop_tasks=True)
    real.close()


async def _opened(machine: Machine) -> Runtime:
    runtime = machine.worker()
    await runtime.open()
    return runtime


async def _next_end(runtime: Runtime) -> Ended:
    async with asyncio.timeout(WAIT_S):
        async for end in runtime.ends():
            return end
    raise AssertionError("no more ends")


async def _rest(runtime: Runtime) -> list[Ended]:
    async with asyncio.timeout(WAIT_S):
        return [end async for end in runtime.ends()]


def _running(held: list[Held]) -> list[str]:
    return sorted(one.attempt for one in held if one.ended is None)


async def test_a_new_machine_holds_nothing(machine: Machine) -> None:
    runtime = machine.worker()
    assert await runtime.open() == []
    await runtime.close(stop_tasks=False)
    assert await _rest(runtime) == []


async def test_an_end_is_told_with_its_code_and_the_output_is_in_the_log(machine: Machine) -> None:
    runtime = await _opened(machine)
    await runtime.launch(machine.task("a"))
    machine.let_end("a", 7)
    end = await _next_end(runtime)
    assert (end.attempt, end.task_id, end.exit_code, end.error, end.stopped) == ("a", "t-a", 7, "", "")
    assert end.finished_at > 0
    assert (runtime.folder("a") / "log").read_bytes() == b"hello\n"


async def test_a_second_launch_of_an_attempt_does_nothing(machine: Machine) -> None:
    runtime = await _opened(machine)
    for _ in range(3):
        await runtime.launch(machine.task("a"))
    machine.let_end("a", 0)
    await _next_end(runtime)
    await runtime.launch(machine.task("a"))
    await runtime.close(stop_tasks=True)
    assert await _rest(runtime) == []
    assert (runtime.folder("a") / "log").read_bytes() == b"hello\n"


async def test_what_is_prepared_begins_when_it_is_launched_and_not_before(machine: Machine) -> None:
    runtime = await _opened(machine)
    for attempt in ("a", "b", "a"):
        runtime.prepare(machine.task(attempt))
    await runtime.launch(machine.task("b"))
    machine.let_end("b", 7)
    end = await _next_end(runtime)
    assert (end.attempt, end.exit_code) == ("b", 7)
    runtime.prepare(machine.task("b"))
    assert (runtime.folder("b") / "log").read_bytes() == b"hello\n"
    await runtime.close(stop_tasks=False)
    assert await _rest(runtime) == []
    held = await machine.worker().open()
    assert [one.attempt for one in held] == ["b"]


async def test_given_files_lie_in_the_attempt_s_folder(machine: Machine) -> None:
    runtime = await _opened(machine)
    await runtime.launch(machine.task("a", files={"call.pkl": b"\x00\xff"}))
    machine.let_end("a", 0)
    await _next_end(runtime)
    folder = runtime.folder("a")
    assert (folder / "call.pkl").read_bytes() == b"\x00\xff"
    assert (folder / "work").is_dir()
    assert (folder / "out").is_dir()


async def test_a_stop_shows_its_reason_and_the_signal(machine: Machine) -> None:
    runtime = await _opened(machine)
    await runtime.launch(machine.task("a"))
    await runtime.stop("a", "preempted", 10.0)
    end = await _next_end(runtime)
    assert (end.exit_code, end.stopped) == (143, "preempted")


async def test_a_stop_of_nobody_and_of_one_that_has_ended_is_ignored(machine: Machine) -> None:
    runtime = await _opened(machine)
    await runtime.stop("nobody", "cancelled", 0.0)
    await runtime.launch(machine.task("a"))
    machine.let_end("a", 0)
    assert (await _next_end(runtime)).stopped == ""
    await runtime.stop("a", "cancelled", 0.0)
    await runtime.close(stop_tasks=True)
    assert await _rest(runtime) == []


async def test_a_deadline_is_kept_by_the_runtime_itself(machine: Machine) -> None:
    runtime = await _opened(machine)
    await runtime.launch(machine.task("a", deadline_s=0.2))
    machine.pass_time(0.2)
    end = await _next_end(runtime)
    assert (end.exit_code, end.stopped) == (143, "max_runtime")


async def test_a_lease_that_is_not_renewed_is_the_end_and_one_that_is_goes_on(machine: Machine) -> None:
    runtime = await _opened(machine)
    leased = machine.task("a")
    leased.lease_s = 1.0
    await runtime.renew(0.0)
    await runtime.launch(leased)
    await runtime.launch(machine.task("b"))
    machine.pass_time(0.6)
    await runtime.renew(0.1)
    machine.pass_time(0.6)
    machine.pass_time(0.6)
    end = await _next_end(runtime)
    assert (end.attempt, end.exit_code, end.stopped) == ("a", 143, "lost contact")


async def test_what_is_ordered_on_a_lease_that_has_run_out_is_never_started(machine: Machine) -> None:
    runtime = await _opened(machine)
    for attempt, after in (("a", []), ("b", ["a"])):
        leased = machine.task(attempt)
        leased.lease_s, leased.after = 60.0, after
        if attempt == "a":
            await runtime.renew(61.0)
        await runtime.launch(leased)
        end = await _next_end(runtime)
        assert (end.attempt, end.exit_code, end.stopped) == (attempt, 143, "lost contact")
        assert not (runtime.folder(attempt) / "log").exists()
    await runtime.renew(1.0)
    leased = machine.task("c")
    leased.lease_s = 60.0
    await runtime.launch(leased)
    machine.let_end("c", 0)
    assert (await _next_end(runtime)).stopped == ""


async def test_what_runs_when_a_worker_goes_is_taken_back_by_the_next(machine: Machine) -> None:
    first = await _opened(machine)
    await first.launch(machine.task("a"))
    await first.launch(machine.task("b"))
    await machine.begun("a", "b")
    await first.close(stop_tasks=False)
    assert await _rest(first) == []
    second = machine.worker()
    held = await second.open()
    assert _running(held) == ["a", "b"]
    assert {one.task_id for one in held} == {"t-a", "t-b"}
    assert all(one.started_at > 0 for one in held)
    await second.launch(machine.task("a"))
    machine.let_end("a", 3)
    assert (await _next_end(second)).exit_code == 3


async def test_an_end_is_shown_to_every_new_worker_until_it_is_forgotten_and_told_to_each_once(
    machine: Machine,
) -> None:
    first = await _opened(machine)
    await first.launch(machine.task("a"))
    machine.let_end("a", 5)
    await _next_end(first)
    await first.close(stop_tasks=False)
    second = machine.worker()
    (held,) = await second.open()
    assert held.ended is not None
    assert (held.ended.exit_code, held.ended.task_id) == (5, "t-a")
    await second.forget("a")
    await second.close(stop_tasks=False)
    assert await _rest(second) == [], "it was shown by open"
    third = machine.worker()
    assert await third.open() == []


async def test_only_what_has_ended_can_be_forgotten(machine: Machine) -> None:
    runtime = await _opened(machine)
    await runtime.launch(machine.task("a"))
    with pytest.raises((ValueError, AssertionError)):
        await runtime.forget("a")


async def test_a_task_that_comes_after_others_starts_by_itself_when_the_last_of_them_has_ended(
    machine: Machine,
) -> None:
    runtime = await _opened(machine)
    for attempt, after in (("a", []), ("b", ["a"]), ("c", ["a", "b", "unknown"])):
        task = machine.task(attempt)
        task.after = after
        await runtime.launch(task)
    machine.let_end("a", 0)
    assert (await _next_end(runtime)).attempt == "a"
    await machine.begun("b")
    again = machine.worker()
    held = {one.attempt: one.started_at for one in await again.open()}
    assert held["c"] == 0.0
    assert held["b"] > 0.0
    machine.let_end("b", 0)
    assert (await _next_end(again)).attempt == "b"
    machine.let_end("c", 3)
    end = await _next_end(again)
    assert (end.attempt, end.exit_code) == ("c", 3)


async def test_a_chain_of_tasks_runs_to_its_end(machine: Machine) -> None:
    runtime = await _opened(machine)
    for attempt, before in (("a", ""), ("b", "a"), ("c", "b")):
        task = machine.task(attempt)
        task.after = [before] if before else []
        await runtime.launch(task)
    for attempt in ("a", "b", "c"):
        machine.let_end(attempt, 0)
        assert (await _next_end(runtime)).attempt == attempt


async def test_what_waits_can_be_stopped_and_never_starts(machine: Machine) -> None:
    runtime = await _opened(machine)
    await runtime.launch(machine.task("a"))
    for attempt, before in (("b", "a"), ("c", "b")):
        task = machine.task(attempt)
        task.after = [before]
        await runtime.launch(task)
    await runtime.stop("c", "cancelled", 5.0)
    end = await _next_end(runtime)
    assert (end.attempt, end.exit_code, end.stopped) == ("c", 143, "cancelled")
    await runtime.close(stop_tasks=True)
    assert sorted((end.attempt, end.stopped) for end in await _rest(runtime)) == [("a", "shutdown"), ("b", "shutdown")]
    assert not (runtime.folder("b") / "log").exists()


async def test_what_waits_can_be_called_back_and_those_behind_it_wait_for_what_it_waited_for(machine: Machine) -> None:
    runtime = await _opened(machine)
    for attempt, before in (("a", ""), ("b", "a"), ("c", "b")):
        task = machine.task(attempt)
        task.after = [before] if before else []
        await runtime.launch(task)
    await runtime.call_back("b", "called back")
    end = await _next_end(runtime)
    assert (end.attempt, end.exit_code, end.stopped) == ("b", 143, "called back")
    held = {one.attempt: one for one in await machine.worker().open()}
    assert (held["c"].started_at, held["c"].after) == (0.0, ["a"])


async def test_what_has_been_started_is_not_called_back(machine: Machine) -> None:
    runtime = await _opened(machine)
    await runtime.launch(machine.task("a"))
    await machine.begun("a")
    await runtime.call_back("a", "called back")
    await runtime.call_back("nobody", "called back")
    machine.let_end("a", 0)
    end = await _next_end(runtime)
    assert (end.exit_code, end.stopped) == (0, "")


async def test_leaving_for_good_stops_everything_and_tells_every_end(machine: Machine) -> None:
    runtime = await _opened(machine)
    for attempt in ("a", "b", "c"):
        await runtime.launch(machine.task(attempt))
    await runtime.close(stop_tasks=True)
    ends = await _rest(runtime)
    assert sorted((end.attempt, end.exit_code, end.stopped) for end in ends) == [
        (attempt, 143, "shutdown") for attempt in ("a", "b", "c")
    ]


@pytest.mark.parametrize("attempt", ["", "..", "../x", "a/b", "a b", "x" * 65])
async def test_names_that_could_lead_elsewhere_are_refused(attempt: str, machine: Machine) -> None:
    runtime = await _opened(machine)
    with pytest.raises(ValueError, match="not an attempt id"):
        await runtime.launch(Launch(attempt=attempt, task_id="t", argv=["true"], env={}))
    with pytest.raises(ValueError, match="not an attempt id"):
        runtime.folder(attempt)
    with pytest.raises(ValueError, match="not a plain file name"):
        await runtime.launch(Launch(attempt="a", task_id="t", argv=["true"], env={}, files={"../x": b""}))
