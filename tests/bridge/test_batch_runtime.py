"""Tasks as jobs of a batch system that loses answers, forgets, is full, and does not know of its bridges' deaths."""

import asyncio
import errno
import os
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.bridge.shell_batch import ShellBatch
from tests.process_fleet import until
from tests.runtime.tasks import is_alive

from ostler.bridge import cluster as cluster_module
from ostler.bridge import runtime as batch_runtime
from ostler.bridge import runtime as runtime_module
from ostler.bridge.base import Refusal, Submission, Unanswered
from ostler.bridge.cluster import Cluster
from ostler.bridge.runtime import BatchRuntime, Turn
from ostler.runtime.base import Ended, Launch
from ostler.runtime.process import Replaced

WAIT_S = 60.0


@pytest.fixture
def system() -> Iterator[ShellBatch]:
    made = ShellBatch()
    yield made
    made.close()


@asynccontextmanager
async def bridge(system: ShellBatch, folder: Path, **more: float) -> AsyncIterator[BatchRuntime]:
    """One process of the bridge: at the end it is gone without a word."""
    cluster = Cluster(system, folder, look_s=0.02, **more)
    cluster.take()
    runtime = cluster.runtime("here")
    await runtime.open()
    loop = asyncio.create_task(cluster.run())
    try:
        yield runtime
    finally:
        assert not loop.done() or loop.exception() is None
        loop.cancel()


def task(attempt: str, line: str = "echo hello", **more: object) -> Launch:
    path = {"PATH": os.environ.get("PATH", os.defpath)}
    return Launch(attempt=attempt, task_id=f"t-{attempt}", argv=["sh", "-c", line], env=path, **more)  # type: ignore[arg-type]


async def next_end(runtime: BatchRuntime) -> Ended:
    async with asyncio.timeout(WAIT_S):
        return await anext(runtime.ends())


async def next_turn(runtime: BatchRuntime) -> Turn:
    async with asyncio.timeout(WAIT_S):
        return await anext(runtime.turns())


async def seen(holds: Callable[[], Any], what: str) -> None:
    def is_so() -> Any:
        with suppress(FileNotFoundError):
            return holds()

    await asyncio.to_thread(until, is_so, what, WAIT_S)


async def test_an_answer_that_is_lost_costs_nothing_and_nothing_runs_twice(system: ShellBatch, tmp_path: Path) -> None:
    system.loses_answers = True
    async with bridge(system, tmp_path) as runtime:
        await runtime.launch(task("a"))
        end = await next_end(runtime)
    assert (end.exit_code, system.submitted) == (0, ["a"])


async def test_what_a_killed_bridge_has_submitted_without_seeing_the_answer_is_found_by_its_name(
    system: ShellBatch, tmp_path: Path
) -> None:
    async with bridge(system, tmp_path) as runtime:
        await runtime.launch(task("a", "echo once >> ../once; sleep 0.3"))
        assert (await next_turn(runtime)).attempt == "a"
        record = runtime.live["a"].record
        record.job = ""
        runtime._files.save("a", record)
    async with bridge(system, tmp_path) as runtime:
        assert (await next_end(runtime)).exit_code == 0
    assert (runtime.folder("a") / "once").read_text() == "once\n"
    assert system.submitted == ["a"]


async def test_of_two_jobs_of_one_attempt_one_runs_and_its_end_counts(system: ShellBatch, tmp_path: Path) -> None:
    async with bridge(system, tmp_path) as runtime:
        await runtime.launch(task("a", "echo once >> ../once; sleep 0.5; exit 4"))
        assert (await next_turn(runtime)) == Turn("a", "")
        (first,) = (await system.adopt())["a"]
        submission = system._jobs[first].submission
        second = (await system.submit([submission]))["a"]
        assert isinstance(second, str)
        runtime.live["a"].record.job = second
        end = await next_end(runtime)
    assert (end.exit_code, end.error) == (4, "")
    assert (runtime.folder("a") / "once").read_text() == "once\n"


async def test_a_full_cluster_is_waited_for_in_words_and_a_recall_there_keeps_it_from_ever_beginning(
    system: ShellBatch, tmp_path: Path
) -> None:
    system.seats = 1
    async with bridge(system, tmp_path) as runtime:
        await runtime.launch(task("a", "read x < ../gate"))
        os.mkfifo(runtime.folder("a") / "gate")
        assert await next_turn(runtime) == Turn("a", "")
        await runtime.launch(task("b"))
        assert await next_turn(runtime) == Turn("b", "its turn in the shell (job 2: no seat)")
        await runtime.call_back("b", "called back")
        end = await next_end(runtime)
        assert (end.attempt, end.exit_code, end.stopped) == ("b", 143, "called back")
        assert not (runtime.folder("b") / "log").exists()
        await runtime.stop("a", "cancelled", 5.0)
        assert (await next_end(runtime)).stopped == "cancelled"


async def test_what_is_not_begun_for_too_long_is_handed_back_and_the_node_rests(
    system: ShellBatch, tmp_path: Path
) -> None:
    system.seats = 0
    async with bridge(system, tmp_path, patience_s=0.3) as runtime:
        await runtime.launch(task("a"))
        end = await next_end(runtime)
        assert (
            end.stopped == "called back: the shell did not start it within 0 s: its turn in the shell (job 1: no seat)"
        )
        assert runtime.resting
        await seen(lambda: not runtime.resting, "the rest is over")


async def test_what_has_begun_unseen_is_not_handed_back_when_patience_is_over(
    system: ShellBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "SETTLE_S", 1.0)
    system.seats = 0
    async with bridge(system, tmp_path, patience_s=0.3) as runtime:
        await runtime.launch(task("a"))
        assert (await next_turn(runtime)).waits_for
        (runtime.folder("a") / ".job" / "begun").mkdir()  # by a job of it that is not looked at
        await asyncio.sleep(0.5)
        assert not runtime.resting
        await runtime.stop("a", "cancelled", 1.0)
        assert (await next_end(runtime)).stopped == "cancelled"


@pytest.mark.parametrize("seats", [0, 1])
async def test_a_bridge_that_is_killed_between_a_fence_and_its_record_ends_what_it_fenced(
    system: ShellBatch, tmp_path: Path, seats: int
) -> None:
    system.seats = 0
    async with bridge(system, tmp_path) as runtime:
        await runtime.launch(task("a"))
        assert (await next_turn(runtime)).waits_for
        assert runtime._files.fence("a")
    system.seats = seats
    async with bridge(system, tmp_path) as runtime:
        end = await next_end(runtime)
    assert (end.exit_code, end.stopped, end.error) == (143, "called back", "")
    assert not (runtime.folder("a") / "log").exists()


async def test_what_was_told_to_end_and_is_known_to_nobody_is_over(system: ShellBatch, tmp_path: Path) -> None:
    async with bridge(system, tmp_path) as runtime:
        await runtime.launch(task("a", "sleep 0.5; exit 3"))
        assert await next_turn(runtime) == Turn("a", "")
        system.mute = True
        await seen(lambda: runtime._files.exit("a"), "it has left its exit code")
        runtime.live["a"].record.job, runtime.live["a"].record.stopped = "", "cancelled"
        runtime._files.save("a", runtime.live["a"].record)
    system.mute = False
    system.forget()
    async with bridge(system, tmp_path) as runtime:
        end = await next_end(runtime)
    assert (end.exit_code, end.stopped) == (3, "cancelled")


async def test_a_folder_that_takes_nothing_more_loses_no_end_and_does_not_end_the_bridge(
    system: ShellBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with bridge(system, tmp_path) as runtime:
        await runtime.renew(0.0)
        await runtime.launch(task("a", "read x < ../gate; exit 4", lease_s=60.0))
        os.mkfifo(runtime.folder("a") / "gate")
        assert await next_turn(runtime) == Turn("a", "")
        with monkeypatch.context() as full:
            full.setattr("ostler.bridge.record._write", is_full)
            full.setattr(Path, "touch", is_full)
            full.setattr(Path, "iterdir", is_full)
            await runtime.renew(-10.0)
            with pytest.raises(OSError, match="No space left"):
                await runtime.launch(task("b"))
            await asyncio.to_thread((runtime.folder("a") / "gate").write_text, "x")
            end = await next_end(runtime)
        assert (end.attempt, end.exit_code) == ("a", 4)
        await runtime.launch(task("c"))
        assert (await next_end(runtime)).attempt == "c"


async def test_a_refusal_that_lasts_is_the_end_and_one_that_does_not_is_waited_for(
    system: ShellBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostler.bridge.cluster.AGAIN_S", 0.05)
    async with bridge(system, tmp_path) as runtime:
        system.refusal = Refusal("no such account", lasting=True)
        await runtime.launch(task("a"))
        assert (await next_end(runtime)).error == "the shell did not take it: no such account"
        system.refusal = Refusal("too many jobs", lasting=False)
        await runtime.launch(task("b"))
        assert await next_turn(runtime) == Turn("b", "the shell to take it: too many jobs")
        system.refusal = None
        assert (await next_end(runtime)).exit_code == 0


async def test_a_batch_system_that_does_not_answer_changes_nothing(system: ShellBatch, tmp_path: Path) -> None:
    async with bridge(system, tmp_path) as runtime:
        await runtime.launch(task("a", "sleep 0.1; exit 3"))
        assert (await next_turn(runtime)).attempt == "a"
        system.mute = True
        ends = asyncio.create_task(next_end(runtime))
        await asyncio.sleep(0.5)
        assert not ends.done()
        system.mute = False
        assert (await ends).exit_code == 3


async def test_what_the_batch_system_forgot_ended_as_it_says_itself(
    system: ShellBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_runtime, "SETTLE_S", 0.2)
    async with bridge(system, tmp_path) as runtime:
        await runtime.launch(task("a", "sleep 0.5; exit 6"))
        await runtime.launch(task("b", "exec sleep 60"))
        for _ in range(2):
            await next_turn(runtime)
        system.mute = True
        await seen(lambda: runtime._files.exit("a"), "it has left its exit code")
        system.forget()
        system.mute = False
        ends = {end.attempt: end for end in [await next_end(runtime), await next_end(runtime)]}
    assert (ends["a"].exit_code, ends["a"].error) == (6, "")
    assert "not known there any more" in ends["b"].error


async def test_nobody_else_can_read_what_a_task_is_given_and_it_stands_on_no_command_line(
    system: ShellBatch, tmp_path: Path
) -> None:
    tricky = {
        "PATH": os.environ["PATH"],
        "A": 'it\'s $HOME `id` "x"\n\\',
        "B": os.fsdecode(b"not UTF-8: \xff"),
        "not a name": "x",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    said = [
        "sh",
        "-c",
        'printf %s "$A" > ../said; printf %s "$B" > ../bytes; printf %s "$CUDA_VISIBLE_DEVICES" > ../devices; cat /proc/$$/cmdline',
    ]
    async with bridge(system, tmp_path) as runtime:
        os.environ["CUDA_VISIBLE_DEVICES"] = "7"
        try:
            await runtime.launch(Launch(attempt="a", task_id="t", argv=said, env=tricky, devices=(0,)))
            assert (await next_end(runtime)).exit_code == 0
        finally:
            del os.environ["CUDA_VISIBLE_DEVICES"]
    folder = runtime.folder("a")
    assert (folder / "said").read_text() == tricky["A"]
    assert (folder / "bytes").read_bytes() == b"not UTF-8: \xff"
    assert (folder / "devices").read_text() == "7", "whoever gives out the devices says which they are"
    assert tricky["A"] not in (folder / "log").read_text()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder / ".job").glob("*.sh")}
    assert modes == {"keep.sh": 0o600, "run.sh": 0o600}


async def test_a_task_on_a_lease_ends_by_itself_when_neither_bridge_nor_hub_is_there(
    system: ShellBatch, tmp_path: Path
) -> None:
    async with bridge(system, tmp_path) as runtime:
        await runtime.renew(0.0)
        await runtime.launch(task("a", "exec sleep 60", lease_s=2.0, grace_s=1.0))
        assert await next_turn(runtime) == Turn("a", "")
    await seen(lambda: not system.running(), "it has ended")
    async with bridge(system, tmp_path) as runtime:
        # Told by `open` where the first process was still there to see it, and else by `ends`; written down by either.
        await seen(lambda: runtime._files.records()["a"].ended, "its end is written down")
        end = runtime._files.records()["a"].ended
        assert end is not None and end.stopped == "lost contact"


async def test_a_task_on_a_lease_whose_turn_comes_after_its_end_never_begins(
    system: ShellBatch, tmp_path: Path
) -> None:
    system.seats = 0
    async with bridge(system, tmp_path) as runtime:
        await runtime.renew(0.0)
        await runtime.launch(task("a", "echo begun > ../begun", lease_s=60.0))
        assert "its turn" in (await next_turn(runtime)).waits_for
    runtime._files.write_contact(["a"], time.time() - 61)
    turn = await asyncio.create_subprocess_exec("/bin/sh", runtime._files.keep_script("a"), start_new_session=True)
    assert await turn.wait() == 143
    folder = runtime.folder("a")
    assert not (folder / "begun").exists()
    assert (folder / ".job" / "stopped").read_text() == "lost contact\n"


async def test_a_second_process_on_the_same_folder_takes_over(system: ShellBatch, tmp_path: Path) -> None:
    async with bridge(system, tmp_path) as first, bridge(system, tmp_path):
        with pytest.raises(Replaced, match="another process uses the bridge's folder"):
            await next_end(first)


async def test_a_job_whose_record_is_gone_is_ended(system: ShellBatch, tmp_path: Path) -> None:
    async with bridge(system, tmp_path) as runtime:
        await runtime.launch(task("a", "echo up; exec sleep 60"))
        await seen(lambda: "up" in (runtime.folder("a") / "log").read_text(), "it is up")
    runtime._files.forget("a")
    async with bridge(system, tmp_path):
        await seen(lambda: not system.running(), "it has ended")


async def test_a_bridge_that_starts_again_remembers_when_the_hub_was_last_in_contact(
    system: ShellBatch, tmp_path: Path
) -> None:
    async with bridge(system, tmp_path) as runtime:
        await runtime.renew(0.0)
        await runtime.launch(task("a", "echo up > ../up; while ! test -e ../go; do sleep 0.02; done", lease_s=600.0))
        assert await next_turn(runtime) == Turn("a", "")
    async with bridge(system, tmp_path) as runtime:
        looks = system.looks
        await seen(lambda: system.looks > looks + 2, "it has looked at its clocks")
        (runtime.folder("a") / "go").touch()
        end = await next_end(runtime)
        assert (end.exit_code, end.stopped) == (0, "")


async def test_a_lease_that_is_over_when_the_bridge_starts_again_is_over(system: ShellBatch, tmp_path: Path) -> None:
    async with bridge(system, tmp_path) as runtime:
        await runtime.renew(0.0)
        await runtime.launch(task("a", "exec sleep 600", lease_s=600.0, grace_s=0.1))
        assert await next_turn(runtime) == Turn("a", "")
        runtime._files.write_contact(["a"], time.time() - 601)
    async with bridge(system, tmp_path) as runtime:
        assert (await next_end(runtime)).stopped == "lost contact"


class Late(ShellBatch):
    """Takes the first jobs when it is asked to take others: whoever asked has given up by then."""

    def __init__(self) -> None:
        super().__init__(seats=1)
        self._taken_late: list[Submission] | None = None

    async def submit(self, jobs: Sequence[Submission]) -> dict[str, str | Refusal]:
        if self._taken_late is None:
            self._taken_late = list(jobs)
            raise Unanswered("it did not end in time")
        await super().submit(self._taken_late)
        return await super().submit(jobs)


@pytest.mark.parametrize("is_looked_for", [False, True])
async def test_what_runs_as_a_job_that_was_taken_late_is_not_told_as_ended_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_looked_for: bool
) -> None:
    monkeypatch.setattr(cluster_module, "ADOPT_EVERY", 2 if is_looked_for else 10**6)
    monkeypatch.setattr(cluster_module, "AGAIN_S", 1.0)
    monkeypatch.setattr(runtime_module, "SETTLE_S", 1.0)
    system = Late()
    try:
        async with bridge(system, tmp_path) as runtime:
            up = runtime.folder("a") / "up"
            await runtime.launch(task("a", "echo $$ > ../up; exec sleep 600", grace_s=1.0))
            await seen(lambda: up.exists() and up.read_text(), "it runs")
            if is_looked_for:
                await seen(lambda: runtime.live["a"].running, "the bridge knows")
            await runtime.stop("a", "preempted", 1.0)
            assert (await next_end(runtime)).stopped == "preempted"
            assert not is_alive(int(up.read_text()))
    finally:
        system.close()


async def test_a_stop_and_a_look_that_come_to_the_same_end_tell_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = BatchRuntime(tmp_path, "here", lambda: None, "test")
    files, fenced, looked = runtime._files, Gate(), Gate()
    monkeypatch.setattr(files, "save", fenced.before(files.save, lambda attempt, record: record.fenced))
    monkeypatch.setattr(files, "exit", looked.before(files.exit))
    await runtime.launch(task("a"))
    stop = asyncio.create_task(runtime.stop("a", "shutdown", 1.0))
    await fenced.reached()
    look = asyncio.create_task(runtime.to_signal(time.monotonic()))
    await looked.reached()
    fenced.open()
    await stop
    looked.open()
    assert await look == {}
    await runtime.close(stop_tasks=True)
    assert [(end.attempt, end.stopped) async for end in runtime.ends()] == [("a", "shutdown")]


async def test_what_is_stopped_while_its_files_are_written_ends_once_and_is_never_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = BatchRuntime(tmp_path, "here", lambda: None, "test")
    async with being_written(runtime, monkeypatch, lease_s=60.0):
        await runtime.stop("a", "cancelled", 1.0)
    assert runtime.to_submit(time.monotonic()) == []
    await runtime.close(stop_tasks=True)
    assert [(end.attempt, end.stopped) async for end in runtime.ends()] == [("a", "cancelled")]
    assert runtime._files.records()["a"].ended is not None


async def test_what_is_stopped_and_forgotten_while_its_files_are_written_leaves_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = BatchRuntime(tmp_path, "here", lambda: None, "test")
    async with being_written(runtime, monkeypatch):
        await runtime.stop("a", "cancelled", 1.0)
        await next_end(runtime)
        await runtime.forget("a")
    assert runtime._files.records() == {}


@asynccontextmanager
async def being_written(runtime: BatchRuntime, monkeypatch: pytest.MonkeyPatch, **more: object) -> AsyncIterator[None]:
    """An attempt is launched, and its files are not there before this ends."""
    files, written = runtime._files, Gate()
    monkeypatch.setattr(files, "write", written.before(files.write))
    launch = asyncio.create_task(runtime.launch(task("a", **more)))
    await written.reached()
    yield
    written.open()
    await launch


async def test_a_cancel_that_comes_while_it_is_called_back_is_what_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = BatchRuntime(tmp_path, "here", lambda: None, "test")
    files, fenced, saved = runtime._files, Gate(), Gate()
    await runtime.launch(task("a"))
    with monkeypatch.context() as slow:
        slow.setattr(files, "fence", fenced.before(files.fence))
        slow.setattr(files, "save", saved.before(files.save, lambda attempt, record: record.stopped == "cancelled"))
        back = asyncio.create_task(runtime.call_back("a", "called back"))
        await fenced.reached()
        cancel = asyncio.create_task(runtime.stop("a", "cancelled", 1.0))
        await saved.reached()
        fenced.open()
        await back
        saved.open()
        await cancel
    assert (await next_end(runtime)).stopped == "cancelled"


class Gate:
    """Keeps a call, on whichever thread it is made, until it is opened."""

    def __init__(self) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()

    def before(self, call: Callable[..., Any], when: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
        def kept(*args: Any) -> Any:
            if when(*args):
                self._reached.set()
                assert self._opened.wait(WAIT_S)
            return call(*args)

        return kept

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, WAIT_S)

    def open(self) -> None:
        self._opened.set()
