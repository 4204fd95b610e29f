"""A launch that may come next: what is done for it beforehand, and that nothing comes of it by itself."""

import os
import signal
from pathlib import Path

import pytest
from tests.runtime.tasks import A, B, Ends, Signpost, launch, shell, supervisor_pid
from tests.worker.conftest import eventually

from ostler.runtime.attempts import LOG, OUT, REMOVED, WORK, Folders
from ostler.runtime.base import Ended
from ostler.runtime.process import ProcessRuntime
from ostler.runtime.supervisor import JOURNAL
from ostler.runtime.supervisors import Supervisors

C = f"c-{os.getpid()}"


def entries(runtime: ProcessRuntime) -> list[str]:
    return sorted(os.listdir(runtime.folder(A).parent))


@pytest.fixture
async def spare(runtime: ProcessRuntime, ends: Ends, tmp_path: Path) -> None:
    """A folder that an attempt has left as it was: it is the next one's."""
    await runtime.launch(launch(C, "true"))
    assert (await ends.of(C)).left_nothing
    await runtime.forget(C)
    journal = tmp_path / "state" / JOURNAL
    await eventually(lambda: f'{{"forget":"{C}"}}' in journal.read_text())


async def prepared(runtime: ProcessRuntime, attempt: str) -> None:
    runtime.prepare(shell(attempt, "pwd; echo hello"))
    await eventually(lambda: attempt in entries(runtime))


async def run(runtime: ProcessRuntime, ends: Ends, attempt: str) -> Ended:
    await runtime.launch(shell(attempt, "pwd; echo hello"))
    return await ends.of(attempt)


def printed(runtime: ProcessRuntime, attempt: str) -> list[str]:
    return (runtime.folder(attempt) / LOG).read_text().splitlines()


async def test_what_is_prepared_runs_where_its_folder_was_made_and_once(
    runtime: ProcessRuntime, ends: Ends, spare: None
) -> None:
    await prepared(runtime, A)
    was = (runtime.folder(A) / WORK).stat().st_ino
    assert (await run(runtime, ends, A)).exit_code == 0
    assert (runtime.folder(A) / WORK).stat().st_ino == was
    assert printed(runtime, A) == [str(runtime.folder(A) / WORK), "hello"]
    assert entries(runtime) == [A]


async def test_what_is_prepared_and_never_launched_is_not_begun_and_not_held(
    runtime: ProcessRuntime, ends: Ends, spare: None, tmp_path: Path
) -> None:
    await prepared(runtime, A)
    assert (await run(runtime, ends, B)).exit_code == 0
    assert [end.attempt for end in ends.seen] == [C, B]
    assert (runtime.folder(A) / LOG).read_text() == ""
    await runtime.close(stop_tasks=False)
    again = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    try:
        assert [held.attempt for held in await again.open()] == [B]
        assert [name for name in entries(runtime) if not name.startswith(REMOVED)] == [B]
    finally:
        await again.close(stop_tasks=True)


async def test_the_one_before_gives_way_and_runs_all_the_same_when_it_comes_after_all(
    runtime: ProcessRuntime, ends: Ends, spare: None
) -> None:
    await prepared(runtime, A)
    runtime.prepare(shell(B, "pwd; echo hello"))
    await eventually(lambda: A not in entries(runtime))
    for attempt in (A, B):
        assert (await run(runtime, ends, attempt)).exit_code == 0
        assert printed(runtime, attempt) == [str(runtime.folder(attempt) / WORK), "hello"]


async def test_a_supervisor_killed_in_between_leaves_nothing_that_keeps_it_from_starting(
    runtime: ProcessRuntime, ends: Ends, spare: None, tmp_path: Path
) -> None:
    await prepared(runtime, A)
    assert (runtime.folder(A) / LOG).exists()
    os.kill(supervisor_pid(tmp_path / "state"), signal.SIGKILL)
    end = await run(runtime, ends, A)
    assert (end.exit_code, end.error) == (0, "")
    assert printed(runtime, A) == [str(runtime.folder(A) / WORK), "hello"]


async def test_when_the_worker_has_gone_another_supervisor_may_start_it(
    runtime: ProcessRuntime, ends: Ends, spare: None, tmp_path: Path
) -> None:
    await prepared(runtime, A)
    await runtime.close(stop_tasks=False)
    first, second = (
        ProcessRuntime(tmp_path / name, attempts=runtime.folder(A).parent, idle_exit_s=5.0)
        for name in ("state", "second")
    )
    await first.open()
    await second.open()
    try:
        begun, gate = Signpost(tmp_path / "begun"), Signpost(tmp_path / "gate")
        await second.launch(shell(A, f"echo hello; echo > {begun.path}; read code < {gate.path}; exit $code"))
        await begun.read()
        os.kill(supervisor_pid(tmp_path / "state"), signal.SIGKILL)
        assert (await run(first, Ends(first), B)).exit_code == 0
        assert printed(second, A) == ["hello"]  # whoever follows the first lets it be
        gate.write("3\n")
        assert (await Ends(second).of(A)).exit_code == 3
    finally:
        await first.close(stop_tasks=True)
        await second.close(stop_tasks=True)


async def test_what_has_run_is_not_prepared_again(runtime: ProcessRuntime, ends: Ends, spare: None) -> None:
    assert (await run(runtime, ends, A)).exit_code == 0
    await runtime.forget(A)
    await runtime.launch(launch(B, "true"))
    await ends.of(B)
    await runtime.forget(B)
    runtime.prepare(shell(A, "echo again"))
    assert (await run(runtime, ends, f"{A}-next")).exit_code == 0
    assert printed(runtime, A)[1:] == ["hello"]


async def test_a_supervisor_of_an_earlier_version_is_not_told(runtime: ProcessRuntime, ends: Ends, spare: None) -> None:
    runtime._prepares = False
    runtime.prepare(shell(A, "echo hello"))
    assert (await run(runtime, ends, B)).exit_code == 0
    assert A not in entries(runtime)


@pytest.mark.parametrize("whole", [False, True], ids=["all but its log", "whole"])
async def test_a_folder_that_was_pruned_meanwhile_is_made_again(
    runtime: ProcessRuntime, ends: Ends, spare: None, whole: bool
) -> None:
    await prepared(runtime, A)
    for name in (WORK, OUT):
        (runtime.folder(A) / name).rmdir()
    if whole:
        (runtime.folder(A) / LOG).unlink()
        runtime.folder(A).rmdir()
    end = await run(runtime, ends, A)
    assert (end.exit_code, end.error) == (0, "")
    assert (runtime.folder(A) / OUT).is_dir()


async def pruned(both: Supervisors) -> None:
    await both.prune(keep_bytes=10**9, keep_age_s=10**6)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_who_prunes_before_or_after_it_is_prepared_does_not_keep_it_from_running(
    tmp_path: Path, when: str
) -> None:
    both = Supervisors(tmp_path / "state", idle_exit_s=5.0, two=False)
    await both.open()
    try:
        ends = Ends(both)
        await both.launch(launch(C, "true"))
        await ends.of(C)
        await both.forget(C)
        journal = tmp_path / "state" / JOURNAL
        await eventually(lambda: f'{{"forget":"{C}"}}' in journal.read_text())
        if when == "before":
            await pruned(both)
            assert os.listdir(both.folder(C)) == [LOG]
        both.prepare(shell(A, "pwd; echo hello"))
        await eventually(lambda: (both.folder(A) / OUT).exists())
        await pruned(both)
        assert sorted(os.listdir(both.folder(A))) == [LOG, OUT, WORK]
        await both.launch(shell(A, "pwd; echo hello"))
        end = await ends.of(A)
        assert (end.exit_code, end.error) == (0, "")
        await both.forget(A)
        await pruned(both)
        assert os.listdir(both.folder(A)) == [LOG]
    finally:
        await both.close(stop_tasks=True)


def test_a_folder_of_another_user_or_a_room_is_not_taken_for_the_prepared_one(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    assert folders.make("a")
    folders.release("a", as_new=True)
    folders.prepare("b")
    folders.reserve("b")
    assert folders.make("b")
    assert sorted(os.listdir(folders.path("b"))) == [OUT, WORK]
    assert folders.path("b") != str(tmp_path / "b")


def test_a_folder_in_which_the_worker_has_put_something_is_left_as_it_is(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    assert folders.make("a")
    folders.release("a", as_new=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "facts.json").write_text("{}")
    assert not folders.can_prepare("b")
    assert folders.can_prepare("c")
