"""Short attempts have no folder of their own until there is something in it."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from tests.runtime.tasks import A, B, Ends, Signpost, is_alive, shell, supervisor_pid
from tests.runtime.test_warm import ME, Calls
from tests.worker.conftest import eventually

from ostler.runtime.attempts import Folders
from ostler.runtime.base import Launch
from ostler.runtime.process import ProcessRuntime


def rooms(root: Path) -> list[str]:
    return sorted(name for name in os.listdir(root) if name.startswith(".room-"))


def run(folders: Folders, attempt: str, leaves: str = "") -> str:
    """As a supervisor does; where it ran."""
    folders.reserve(attempt)
    assert folders.make(attempt)
    folder = folders.path(attempt)
    log = Path(folder, "log")
    log.touch(0o600)
    log.write_text(leaves)
    return folder


def test_one_after_another_has_the_same_room_and_no_name(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    first = run(folders, "a")
    folders.release("a", as_new=True)
    assert run(folders, "b") == first
    assert [first] == [str(tmp_path / name) for name in os.listdir(tmp_path)]
    assert sorted(os.listdir(first)) == ["log", "out", "work"]


def test_a_room_in_which_something_is_left_becomes_the_attempts_own_folder(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    run(folders, "a", "hello")
    folders.name("a")
    folders.release("a", as_new=False)
    assert (tmp_path / "a" / "log").read_text() == "hello"
    assert os.listdir(tmp_path) == ["a"]
    run(folders, "b")
    assert (len(rooms(tmp_path)), len(os.listdir(tmp_path))) == (1, 2)


def test_what_one_that_runs_was_told_is_good_to_the_end_and_what_it_left_may_name_it(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    told = Path(run(folders, "a", "hello"))
    (told / "out" / "latest").symlink_to(told / "log")
    folders.show("a")
    assert (tmp_path / "a" / "log").read_text() == "hello" and not told.is_symlink()
    folders.name("a")
    assert (tmp_path / "a" / "out" / "latest").read_text() == "hello" and not (tmp_path / "a").is_symlink()
    folders.release("a", as_new=False)
    assert os.listdir(tmp_path) == ["a"]


def test_of_a_longer_one_that_left_nothing_no_name_stays(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    first = run(folders, "a")
    folders.show("a")
    folders.release("a", as_new=True)
    assert run(folders, "b") == first
    assert [first] == [str(tmp_path / name) for name in os.listdir(tmp_path)]


def test_a_folder_that_one_without_a_room_left_as_it_was_is_the_next_ones_room(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    assert folders.make("a")
    folders.release("a", as_new=True)
    run(folders, "b")
    assert os.listdir(tmp_path) == rooms(tmp_path) != []


def test_what_has_run_before_though_nobody_knows_it_is_put_aside_for_what_is_newer(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    (tmp_path / "a" / "work").mkdir(parents=True)
    run(folders, "a", "newer")
    folders.name("a")
    folders.release("a", as_new=False)
    assert (tmp_path / "a" / "log").read_text() == "newer"
    assert [name for name in os.listdir(tmp_path) if name != "a" and not name.startswith(".removed-")] == []


def test_half_a_room_is_given_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = Folders(str(tmp_path))
    mkdir = os.mkdir

    def full(path: str, mode: int = 0o777) -> None:
        if path.endswith("/out"):
            raise OSError(28, "No space left on device")
        mkdir(path, mode)

    folders.reserve("a")
    folders.share("b", "a")
    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(OSError, match="No space"):
        folders.make("a")
    folders.leave("a")
    folders.leave("b")
    monkeypatch.undo()
    assert sorted(os.listdir(run(folders, "c"))) == ["log", "out", "work"]


def test_a_room_that_somebody_removed_is_made_anew(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    shutil.rmtree(run(folders, "a"))
    folders.release("a", as_new=True)
    assert sorted(os.listdir(run(folders, "b"))) == ["log", "out", "work"]


def test_what_one_before_us_left_in_rooms_goes_to_whom_it_belongs_and_empty_rooms_go(tmp_path: Path) -> None:
    before, other = Folders(str(tmp_path), "one"), Folders(str(tmp_path), "another")
    for name in ("ran", "long", "over", "idle"):
        run(before, name, name)
    known = {name: os.path.basename(before.path(name)) for name in ("ran", "long", "over")}
    before.show("long")
    before.name("over")
    theirs = os.path.basename(run(other, "x"))
    other.show("x")
    Folders(str(tmp_path), "one").recover(known)
    left = {name for name in os.listdir(tmp_path) if not name.startswith(".removed-")}
    assert left == {"ran", "long", "over", "x", theirs}
    for name in ("ran", "long", "over"):
        assert (tmp_path / name / "log").read_text() == name and not (tmp_path / name).is_symlink()


def test_two_that_tidy_up_at_the_same_time_are_not_in_each_others_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Folders(str(tmp_path), "another")
    run(other, "x")
    other.show("x")
    readlink = os.readlink

    def a_moment_later(path: str) -> str:
        (tmp_path / "x").unlink(missing_ok=True)
        return readlink(path)

    monkeypatch.setattr(os, "readlink", a_moment_later)
    Folders(str(tmp_path), "one").recover({})
    assert len(rooms(tmp_path)) == 1


def test_who_leaves_leaves_no_rooms(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    run(folders, "a")
    folders.release("a", as_new=True)
    folders.close()
    assert rooms(tmp_path) == []


# One for several


def test_of_several_in_one_room_each_is_out_with_its_end_and_the_last_when_somebody_has_looked(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    first = run(folders, "a")
    for name, host in (("b", "a"), ("c", "b")):
        assert folders.share(name, host) == os.path.basename(first)
        assert folders.make(name) and folders.path(name) == first
    for name in ("a", "b", "c"):
        folders.enter(name)
        assert folders.whose(os.path.basename(first)) == name
        assert folders.vacate(name) is (name != "c")
        folders.release(name, as_new=True)
    assert run(folders, "d") == first
    assert [first] == [str(tmp_path / name) for name in os.listdir(tmp_path)]


def test_a_room_for_several_is_made_for_the_first_of_them(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    folders.reserve("a")
    folders.share("b", "a")
    assert folders.make("a")
    assert sorted(os.listdir(folders.path("b"))) == ["out", "work"]


def test_a_room_is_free_when_the_last_of_those_that_have_not_begun_has_left_it(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    first = run(folders, "a")
    folders.share("b", "a")
    folders.leave("b")
    assert run(folders, "c") != first
    folders.leave("a")
    assert run(folders, "d") == first


def test_a_room_of_which_it_is_only_said_that_it_is_as_it_was_is_looked_at_before_another_gets_it(
    tmp_path: Path,
) -> None:
    folders = Folders(str(tmp_path))
    for leaves, is_kept in (("", True), ("hello", False)):
        room = run(folders, f"a{leaves}", leaves)
        folders.share(f"b{leaves}", f"a{leaves}")
        assert folders.vacate(f"a{leaves}")
        folders.leave(f"b{leaves}")
        assert (run(folders, f"c{leaves}") == room) is is_kept
        folders.release(f"c{leaves}", as_new=True)


def test_whoever_has_left_something_takes_the_room_along_from_all_others(tmp_path: Path) -> None:
    """Who was in there with it when their interpreter was killed, or had to be."""
    folders = Folders(str(tmp_path))
    room = run(folders, "a", "hello")
    folders.share("b", "a")
    folders.name("a")
    assert folders.path("b") == str(tmp_path / "b")
    assert not folders.is_as_new("b", 0.0)
    folders.release("b", as_new=False)
    folders.release("a", as_new=False)
    assert run(folders, "c") != room
    assert (tmp_path / "a" / "log").read_text() == "hello"


# With a supervisor


def anywhere(runtime: ProcessRuntime, attempt: str, script: str, **more: Any) -> Launch:
    wanted = shell(attempt, script, anywhere=True, **more)
    wanted.env["OSTLER_OUT"] = str(runtime.folder(attempt) / "out")
    return wanted


async def test_what_a_short_one_prints_and_leaves_is_in_its_own_folder(runtime: ProcessRuntime, ends: Ends) -> None:
    for n, script in enumerate(("true", "echo hello", "echo > $OSTLER_OUT/file", "echo > file")):
        name = f"{A}-{n}"
        await runtime.launch(anywhere(runtime, name, script))
        end = await ends.of(name)
        assert (end.exit_code, end.left_nothing) == (0, n == 0)
        assert runtime.folder(name).exists() is (n > 0)
    assert (runtime.folder(f"{A}-1") / "log").read_text() == "hello\n"
    assert (runtime.folder(f"{A}-2") / "out" / "file").exists()
    assert (runtime.folder(f"{A}-3") / "work" / "file").exists()


async def test_one_that_is_not_short_can_be_seen_while_it_runs(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    script = f"echo begun; read word < {post.path}; echo $word > $OSTLER_OUT/word"
    await runtime.launch(anywhere(runtime, A, script))
    folder = runtime.folder(A)
    await eventually(lambda: folder.exists() and (folder / "log").read_text() == "begun\n")
    post.write("on\n")
    assert (await ends.of(A)).exit_code == 0
    assert (folder / "out" / "word").read_text() == "on\n"
    await runtime.forget(A)
    await eventually(lambda: rooms(folder.parent) == [])


async def test_a_room_is_the_next_ones_at_once_unless_somebody_may_be_reading_there(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    await runtime.launch(anywhere(runtime, A, "true"))
    assert (await ends.of(A)).left_nothing
    folder = runtime.folder(B)
    await runtime.launch(anywhere(runtime, B, f"read word < {post.path}"))
    await eventually(lambda: folder.exists())
    first = rooms(folder.parent)
    with (folder / "log").open() as reader:
        post.write("on\n")
        assert (await ends.of(B)).left_nothing
        await runtime.launch(anywhere(runtime, f"{A}-2", "echo not for those who read the log of another"))
        await ends.of(f"{A}-2")
        assert reader.read() == ""
    assert len(first) == 1 and rooms(folder.parent) != first


async def test_after_its_supervisor_was_killed_everything_is_where_it_belongs(tmp_path: Path) -> None:
    state, begun = tmp_path / "state", Signpost(tmp_path / "begun")
    runtime = ProcessRuntime(state, idle_exit_s=5.0)
    await runtime.open()
    ends = Ends(runtime)
    await runtime.launch(anywhere(runtime, B, "true"))
    await ends.of(B)
    await runtime.launch(anywhere(runtime, A, f"echo begun; echo > {begun.path}; exec sleep 100"))
    await begun.read()
    os.kill(supervisor_pid(state), signal.SIGKILL)
    assert (await ends.of(A)).exit_code == 137
    assert (runtime.folder(A) / "log").read_text() == "begun\n"
    assert not runtime.folder(B).exists(), "it left nothing, and was in the same room before"
    await runtime.close(stop_tasks=True)
    after = ProcessRuntime(state, idle_exit_s=5.0)
    assert {one.attempt: one.ended.left_nothing for one in await after.open() if one.ended} == {A: False, B: True}
    await after.close(stop_tasks=True)


@pytest.fixture
def line(runtime: ProcessRuntime, ends: Ends, tmp_path: Path) -> Callable[..., Any]:
    """Calls, each after the one before it."""
    calls = Calls(runtime, ends)

    async def begin(fn: Callable[..., Any], count: int) -> tuple[Calls, list[str]]:
        payload = tmp_path / "call"
        payload.write_bytes(cloudpickle.dumps(("map", fn, [(n,) for n in range(count)])))
        names = [f"{ME}-{n}" for n in range(count)]
        for n, name in enumerate(names):
            env = {"OSTLER_OUT": str(runtime.folder(name) / "out")}
            after = names[n - 1 : n] if n else []
            await calls.start_payload(name, {}, str(payload), n, env, after=after, anywhere=True, warm="k")
        for name in names:
            end = await ends.of(name)
            assert (end.exit_code, end.error) == (0, "")
        return calls, names

    return begin


async def test_calls_ahead_leave_what_they_leave_under_their_own_names(line: Callable[..., Any]) -> None:
    def leave(n: int) -> Any:
        if n % 10 == 3:
            print("printed", n)
        if n % 10 == 5:
            Path(os.environ["OSTLER_OUT"], "file").write_text(str(n))
        return b"x" * 200_000 if n % 10 == 7 else n

    calls, names = await line(leave, 60)
    for n, name in enumerate(names):
        assert calls.opened(name) == ("value", b"x" * 200_000 if n % 10 == 7 else n)
        folder = calls.runtime.folder(name)
        assert folder.exists() is (n % 10 in (3, 5, 7)) or n == 0, "the first has waited for its interpreter"
        if n % 10 == 3:
            assert calls.log(name) == f"printed {n}\n"
        if n % 10 == 5:
            assert (folder / "out" / "file").read_text() == str(n)


async def test_calls_ahead_that_leave_nothing_have_one_room(line: Callable[..., Any]) -> None:
    def where(n: int) -> tuple[str, str]:
        return os.getcwd(), os.environ["OSTLER_OUT"]

    calls, names = await line(where, 60)
    places = [calls.opened(name)[1] for name in names]
    assert len(set(places)) < len(places) / 2
    assert all(os.path.dirname(work) == os.path.dirname(out) for work, out in places)
    assert not any(calls.runtime.folder(name).exists() for name in names[1:])


async def test_what_one_call_does_to_its_folder_is_not_seen_by_the_next(line: Callable[..., Any]) -> None:
    def look(n: int) -> list[str]:
        found = sorted(os.listdir("..")) + os.listdir(".") + os.listdir(os.environ["OSTLER_OUT"])
        if n == 20:
            Path("file").touch()
        if n == 30:
            os.chdir("/")
        if n == 40:
            os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
        if n in (35, 45):
            print(n)
        return found

    calls, names = await line(look, 60)
    assert {tuple(calls.opened(name)[1]) for name in names} == {("log", "out", "work")}
    assert [calls.log(names[n]) for n in (35, 45)] == ["35\n", "45\n"]
    assert (calls.runtime.folder(names[20]) / "work" / "file").exists()


async def test_what_an_attempt_leaves_running_in_its_room_is_its_own(
    runtime: ProcessRuntime, ends: Ends, post: Signpost, tmp_path: Path
) -> None:
    """It has no environment and no session by which it could be told; and somebody else runs, too."""
    begun, straggles = Signpost(tmp_path / "begun"), Signpost(tmp_path / "straggles")
    await runtime.launch(anywhere(runtime, B, f"echo > {begun.path}; read word < {post.path}"))
    await begun.read()
    inner = f"echo $$ > {straggles.path}; exec sleep 100"
    await runtime.launch(anywhere(runtime, A, f"env -i setsid sh -c '{inner}' & read word < {begun.path}"))
    pid = int(await straggles.read())
    begun.write("go\n")
    await ends.of(A)
    assert not is_alive(pid)
    post.write("go\n")
    assert (await ends.of(B)).exit_code == 0
