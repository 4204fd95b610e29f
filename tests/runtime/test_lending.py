"""Calls that are given to an interpreter ahead of their turn: faster, and otherwise as if each had waited for it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import psutil
import pytest
from tests.runtime.tasks import PATH, WAIT_S, A, B, Ends, Signpost, is_alive, shell, supervisor_pid
from tests.runtime.test_warm import ME, Calls

import ostler
from ostler.runtime.process import ProcessRuntime
from ostler.runtime.waiting import Waiting

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no interpreter elsewhere finds this file


WITH_PATH = {"PATH": PATH}


class Line:
    """Calls, each of which comes after the one before it; what ran is written down by those that ran."""

    def __init__(self, calls: Calls, folder: Path, *, in_rooms: bool) -> None:
        self.calls = calls
        self._in_rooms = in_rooms
        self.names: list[str] = []
        self.diary = folder / "diary"
        self._journal = folder / "state" / "journal"
        self._count = 0

    async def add(self, fn: Callable[..., Any], *args: Any) -> str:
        """Its payload is no file of its own, so that its folder may be one that an earlier call had."""
        self._count += 1
        name = f"{ME}-line-{self._count}"
        payload = self.diary.with_name(f"{name}.pkl")
        payload.write_bytes(cloudpickle.dumps(("call", fn, (str(self.diary), *args), {})))
        after, in_room = self.names[-1:], self._in_rooms and bool(self.names)
        await self.calls.start_payload(name, {}, str(payload), 0, {}, after=after, anywhere=in_room)
        self.names.append(name)
        return name

    async def is_warm(self) -> None:
        """An interpreter is there, and it is known that its calls do not take long: the first alone does."""
        for _ in range(10):
            name = await self.add(note, "warm")
            await self.calls.ends.of(name)
            await self.calls.runtime.forget(name)
        self._begin_anew()

    async def has_spare_folders(self, count: int) -> None:
        """Those of calls that have left nothing."""
        for _ in range(count):
            await self.add(note, "spare")
        await self.over()
        for name in self.names:
            await self.calls.runtime.forget(name)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.diary.unlink()
        self.calls.ends.seen.clear()
        self.names.clear()

    async def over(self) -> list[int]:
        return [(await self.calls.ends.of(name)).exit_code for name in self.names]

    def written(self) -> list[str]:
        return self.diary.read_text().split() if self.diary.exists() else []

    async def is_given_ahead(self, name: str) -> None:
        """Its start is on the disk before it is given to anybody."""
        await self.has_in_journal(f'"start":"{name}"')

    async def has_in_journal(self, text: str) -> None:
        def is_there() -> bool:
            return text in self._journal.read_text()

        async with asyncio.timeout(WAIT_S):
            while not is_there():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.005)

    def order_of_ends(self) -> list[str]:
        return [end.attempt for end in self.calls.ends.seen if end.attempt in self.names]


def note(diary: str, word: str) -> int:
    with open(diary, "a") as file:
        file.write(f"{word} ")
    return os.getpid()


def note_aloud(diary: str, word: str) -> None:
    print(word)
    note(diary, word)


def stand_still(diary: str, word: str, begun: str, release: str) -> int:
    note(diary, word)
    with open(begun, "w") as file:
        file.write("x")
    with open(release, "rb", buffering=0) as file:
        file.read(1)
    return os.getpid()


@pytest.fixture(params=["in folders of their own", "in one room"])
async def line(runtime: ProcessRuntime, ends: Ends, tmp_path: Path, request: pytest.FixtureRequest) -> Line:
    line = Line(Calls(runtime, ends), tmp_path, in_rooms=request.param == "in one room")
    await line.is_warm()
    return line


@pytest.fixture
def begun(tmp_path: Path) -> Signpost:
    return Signpost(tmp_path / "begun")


@pytest.fixture
def release(tmp_path: Path) -> Signpost:
    return Signpost(tmp_path / "release")


async def held_up(line: Line, begun: Signpost, release: Signpost, behind: int = 3) -> None:
    """The first of the line stands still, and the others are with its interpreter already."""
    await line.add(stand_still, "0", str(begun.path), str(release.path))
    for number in range(1, behind + 1):
        await line.add(note, str(number))
    await begun.read()
    await line.is_given_ahead(line.names[-1])


async def suspended(folder: Path) -> psutil.Process:
    """The one interpreter, when it does nothing any more."""
    [interpreter] = psutil.Process(supervisor_pid(folder / "state")).children()
    interpreter.suspend()
    async with asyncio.timeout(WAIT_S):
        while interpreter.status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    return interpreter


async def test_a_line_runs_in_order_each_call_once_and_in_one_interpreter(line: Line) -> None:
    for number in range(100):
        await line.add(note, str(number))
    assert await line.over() == [0] * 100
    assert line.written() == [str(number) for number in range(100)]
    assert line.order_of_ends() == line.names
    assert len({line.calls.opened(name)[1] for name in line.names}) == 1
    assert all(0 < end.ran_s < WAIT_S for end in line.calls.ends.seen), "each its own time, however short"


async def test_a_call_that_crashes_costs_none_of_those_behind_it(line: Line) -> None:
    def crash(diary: str, word: str) -> None:
        note(diary, word)
        os._exit(3)

    for number in range(40):
        await line.add(crash if number in (10, 30) else note, str(number))
    assert await line.over() == [3 if number in (10, 30) else 0 for number in range(40)]
    assert line.written() == [str(number) for number in range(40)], "each ran once"
    assert len({line.calls.opened(name)[1] for name in line.names if name not in (line.names[10], line.names[30])}) == 3


async def test_what_was_given_ahead_is_called_back_while_the_one_before_it_runs(
    line: Line, begun: Signpost, release: Signpost
) -> None:
    await held_up(line, begun, release)
    for name in reversed(line.names[2:]):
        await line.calls.runtime.call_back(name, "called back")
    ends = [await line.calls.ends.of(name) for name in line.names[2:]]
    assert {(end.exit_code, end.stopped) for end in ends} == {(143, "called back")}
    release.write("x")
    assert (await line.over())[:2] == [0, 0]
    assert line.written() == ["0", "1"]


async def test_one_that_is_stopped_before_its_turn_never_runs_and_the_next_takes_its_place(
    line: Line, begun: Signpost, release: Signpost
) -> None:
    await held_up(line, begun, release)
    await line.calls.runtime.stop(line.names[2], "by ann", 5.0)
    assert (await line.calls.ends.of(line.names[2])).stopped == "by ann"
    release.write("x")
    await line.over()
    assert line.written() == ["0", "1", "3"]


async def test_a_stop_of_the_one_that_runs_takes_none_of_those_behind_it_along(
    line: Line, begun: Signpost, release: Signpost
) -> None:
    await held_up(line, begun, release)
    await line.calls.runtime.stop(line.names[0], "by ann", 5.0)
    assert await line.over() == [143, 0, 0, 0]
    assert line.written() == ["0", "1", "2", "3"]


async def test_an_interpreter_that_is_killed_had_begun_only_one_of_its_calls(
    line: Line, begun: Signpost, release: Signpost, tmp_path: Path
) -> None:
    await held_up(line, begun, release)
    [interpreter] = psutil.Process(supervisor_pid(tmp_path / "state")).children()
    interpreter.kill()
    assert await line.over() == [137, 0, 0, 0]
    assert line.written() == ["0", "1", "2", "3"]


async def test_a_call_that_was_given_to_an_interpreter_and_not_begun_is_begun_by_another(
    line: Line, tmp_path: Path
) -> None:
    interpreter = await suspended(tmp_path)
    for number in range(3):
        await line.add(note, str(number))
    await line.is_given_ahead(line.names[-1])
    interpreter.kill()
    assert await line.over() == [0, 0, 0]
    assert line.written() == ["0", "1", "2"]


async def test_a_call_that_waits_for_its_children_keeps_its_interpreter(line: Line) -> None:
    def with_a_child(diary: str, word: str) -> int:
        subprocess.run(["true"], check=True)
        return note(diary, word)

    for number in range(20):
        await line.add(with_a_child if number % 4 == 0 else note, str(number))
    assert await line.over() == [0] * 20
    assert line.written() == [str(number) for number in range(20)]
    assert len({line.calls.opened(name)[1] for name in line.names}) == 1


async def test_what_a_call_leaves_behind_is_gone_before_its_end_is_told(line: Line, tmp_path: Path) -> None:
    def daemon(diary: str, word: str, where: str) -> int:
        if not os.fork():
            os.setsid()
            if not os.fork():
                with open(f"{where}.part", "w") as file:
                    file.write(str(os.getpid()))
                os.rename(f"{where}.part", where)
                time.sleep(60)
            os._exit(0)
        os.wait()
        while not os.path.exists(where):
            time.sleep(0.001)
        return note(diary, word)

    where = tmp_path / "daemon"
    for number in range(5):
        await line.add(note, str(number))
    left = await line.add(daemon, "5", str(where))
    for number in range(6, 10):
        await line.add(note, str(number))
    assert (await line.calls.ends.of(left)).exit_code == 0
    assert not is_alive(int(where.read_text()))
    assert await line.over() == [0] * 10
    assert line.written() == [str(number) for number in range(10)]


async def test_a_killed_supervisor_leaves_every_call_of_a_line_with_one_end(
    line: Line, begun: Signpost, release: Signpost, tmp_path: Path
) -> None:
    await held_up(line, begun, release)
    os.kill(supervisor_pid(tmp_path / "state"), signal.SIGKILL)
    await line.over()
    assert sorted(line.order_of_ends()) == sorted(line.names)
    assert len(line.written()) == len(set(line.written())), "none ran twice"


async def test_what_waits_behind_one_that_takes_long_is_held_by_the_supervisor_again(
    line: Line, begun: Signpost, release: Signpost
) -> None:
    await held_up(line, begun, release)
    await line.has_in_journal(f'{{"forget":"{line.names[-1]}"}}')
    release.write("x")
    assert await line.over() == [0] * 4
    assert line.written() == ["0", "1", "2", "3"]


async def test_what_was_taken_back_begins_under_the_next_supervisor_as_if_nobody_had_had_it(
    line: Line, begun: Signpost, release: Signpost, tmp_path: Path
) -> None:
    await line.has_spare_folders(8)
    await held_up(line, begun, release)
    await line.has_in_journal(f'{{"forget":"{line.names[-1]}"}}')
    os.kill(supervisor_pid(tmp_path / "state"), signal.SIGKILL)
    assert await line.over() == [137, 0, 0, 0]
    assert line.written() == ["0", "1", "2", "3"]


async def test_one_that_is_stopped_after_its_turn_has_come_and_before_it_is_begun_never_runs(
    line: Line, tmp_path: Path
) -> None:
    interpreter = await suspended(tmp_path)
    for number in range(3):
        await line.add(note, str(number))
    await line.is_given_ahead(line.names[-1])
    await line.calls.runtime.stop(line.names[0], "by ann", 5.0)
    assert (await line.calls.ends.of(line.names[0])).stopped == "by ann"
    interpreter.resume()
    assert (await line.over())[1:] == [0, 0]
    assert line.written() == ["1", "2"]


async def test_what_a_call_prints_is_kept_however_late_the_supervisor_hears_of_it(
    line: Line, begun: Signpost, release: Signpost, tmp_path: Path
) -> None:
    await line.add(stand_still, "0", str(begun.path), str(release.path))
    for number in range(1, 4):
        await line.add(note_aloud, str(number))
    await begun.read()
    await line.is_given_ahead(line.names[-1])
    supervisor = psutil.Process(supervisor_pid(tmp_path / "state"))
    supervisor.suspend()
    release.write("x")
    await asyncio.sleep(0.3)  # longer than a file's time may be late, as far as anybody counts on
    supervisor.resume()
    assert await line.over() == [0] * 4
    logs = [line.calls.log(name) for name in line.names[1:]]
    ends = {end.attempt: end.left_nothing for end in line.calls.ends.seen}
    assert (logs, [ends[name] for name in line.names[1:]]) == (["1\n", "2\n", "3\n"], [False] * 3)


async def test_a_call_that_answers_for_others_makes_none_of_them_run_twice(line: Line) -> None:
    def meddle(diary: str, word: str) -> None:
        note(diary, word)
        os.write(3, b"what nobody should say")

    for number in range(40):
        await line.add(meddle if number in (10, 30) else note, str(number))
    await line.over()
    written = line.written()
    assert len(written) == len(set(written)), "none ran twice"
    assert set(written) >= {str(line.names.index(end.attempt)) for end in line.calls.ends.seen if not end.exit_code}
    assert sorted(line.order_of_ends()) == sorted(line.names)


async def test_whoever_takes_a_line_back_is_told_where_each_has_its_checkpoint(tmp_path: Path, post: Signpost) -> None:
    first = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    await first.open()
    await first.launch(shell(A, f"echo x > {post.path}; sleep 60", env={"OSTLER_CHECKPOINT": "/a", **WITH_PATH}))
    await first.launch(shell(B, "true", env={"OSTLER_CHECKPOINT": "/b", **WITH_PATH}, after=[A]))
    await post.read()
    await first.close(stop_tasks=False)
    second = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    held = {one.attempt: (one.checkpoint, one.after) for one in await second.open()}
    await second.close(stop_tasks=False)
    assert held == {A: ("/a", []), B: ("/b", [A])}
    os.kill(supervisor_pid(tmp_path / "state"), signal.SIGKILL)
    third = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    [lost] = await third.open()
    await third.close(stop_tasks=True)
    assert (lost.attempt, lost.checkpoint, lost.ended is not None) == (A, "/a", True)


def _waiting(*pairs: tuple[str, set[str]]) -> Waiting:
    waiting = Waiting()
    for name, after in pairs:
        waiting.add({"attempt": name}, after)
    return waiting


def test_whoever_comes_after_one_that_is_let_go_waits_for_what_that_waited_for() -> None:
    waiting = _waiting(("b", {"a"}), ("c", {"b"}), ("d", {"b", "x"}))
    waiting.let_go("b")
    assert {name: after for name, _, after in waiting} == {"c": {"a"}, "d": {"a", "x"}}
    waiting.ended("a")
    assert waiting.take_ready() == {"attempt": "c"}
    assert waiting.take_ready() is None
    waiting.ended("x")
    assert waiting.take_ready() == {"attempt": "d"}
    assert not waiting


def test_a_follower_waits_for_that_one_alone() -> None:
    waiting = _waiting(("c", {"a", "b"}), ("d", {"a"}))
    assert waiting.follower("a") == {"attempt": "d"}
    assert waiting.follower("b") is None


MEANWHILE = """
import base64, json, os, pickle, signal, sys, time
import cloudpickle
from ostler.runtime.clock import also_asleep
from ostler.runtime.journal import Journal
from ostler.runtime.keeper import Keeper
from ostler.runtime.processes import open_table

folder, first_taken, by_us = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.mkdir(folder + "/attempts")
diary, gate, ends = folder + "/diary", folder + "/gate", {}
os.mkfifo(gate)
keeper = Keeper(folder + "/attempts", Journal(folder + "/journal", "boot"), open_table())


def note(diary, word):
    with open(diary, "a") as file:
        file.write(word + " ")
    return word


def held_up(diary, word, gate):
    with open(gate) as file:
        file.read(1)
    return note(diary, word)


def launch(name, function, *args, after=""):
    with open(f"{folder}/{name}.pkl", "wb") as file:
        file.write(cloudpickle.dumps(("call", function, (diary, name, *args), {})))
    env = {"OSTLER_ATTEMPT": name, "OSTLER_CALL": f"{folder}/{name}.pkl", "OSTLER_RESULT": f"{folder}/{name}.result"}
    order = {"attempt": name, "task_id": "t", "argv": [sys.executable], "env": {**os.environ, **env}, "warm": "k"}
    keeper.launch({**order, "deadline_s": 0, "grace_s": 1, "after": [after] if after else []}, also_asleep())


def until(holds):
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, (ends, open(diary).read())
        keeper.reap(also_asleep())
        keeper.hear(also_asleep())
        keeper.tick(also_asleep())
        keeper.start_ready(also_asleep())
        ends.update((end["attempt"], end) for end in map(json.loads, keeper.take_news()))
        time.sleep(0.002)


class Meanwhile:
    # The interpreter goes on, and takes one of its orders after the other, when so many have been taken back.
    def __init__(self, its_end):
        self.its_end, self.calls = its_end, 0

    def recv_into(self, *args):
        self.calls += 1
        if self.calls == by_us + 1:
            if first_taken == "running":
                with open(gate, "w") as file:
                    file.write("x")
            else:
                os.kill(interpreter.pid, signal.SIGCONT)
            deadline = time.monotonic() + 20
            while "e" not in open(diary).read().split():
                assert time.monotonic() < deadline
                time.sleep(0.001)
        return self.its_end.recv_into(*args)

    def __getattr__(self, name):
        return getattr(self.its_end, name)


for number in range(10):
    launch(f"warm{number}", note)
    until(lambda: f"warm{number}" in ends)
[interpreter] = keeper._pool._idle
os.unlink(diary)
open(diary, "w").close()
if first_taken == "running":
    launch("a", held_up, gate)
else:
    os.kill(interpreter.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, interpreter.pid, os.WSTOPPED)
    launch("a", note)
for before, name in zip("abcd", "bcde"):
    launch(name, note, after=before)
keeper.start_ready(also_asleep())
assert list(interpreter.ahead) == list("bcde"), interpreter.ahead
if first_taken == "running":
    time.sleep(0.2)
interpreter.its_end = Meanwhile(interpreter.its_end)
keeper._take_back(interpreter, also_asleep())
until(lambda: all(name in ends for name in "abcde"))
told = {name: pickle.loads(base64.b64decode(ends[name].get("result", "")) or b"N.") for name in "abcde"}
print(json.dumps([told, sorted(open(diary).read().split()), {name: ends[name]["error"] for name in "abcde"}]))
keeper.leave()
"""


async def _meanwhile(folder: Path, first_taken: str, by_us: int) -> list[Any]:
    source = str(Path(ostler.__file__).parent.parent)
    done = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", MEANWHILE, str(folder), first_taken, str(by_us)),
        env={"PATH": PATH, "PYTHONPATH": source},
        stdout=-1,
        stderr=-1,
    )
    out, err = await done.communicate()
    assert not err, err.decode()
    found: list[Any] = msgspec.json.decode(out)
    return found


@pytest.mark.parametrize("by_us", [1, 2, 3])
async def test_what_is_taken_back_while_the_interpreter_goes_on_is_told_apart_from_what_that_took(
    tmp_path: Path, by_us: int
) -> None:
    told, written, errors = await _meanwhile(tmp_path, "running", by_us)
    assert told == {name: ["value", name] for name in "abcde"}, "each has its own value"
    assert written == list("abcde"), "and ran once"
    assert set(errors.values()) == {""}


async def test_one_that_was_begun_before_its_turn_is_lost_and_not_taken_for_the_one_whose_turn_it_was(
    tmp_path: Path,
) -> None:
    told, written, errors = await _meanwhile(tmp_path, "not begun", 2)
    assert told["a"] == ["value", "a"] and told["b"] == ["value", "b"], "taken back, and begun anew"
    assert written.count("a") == written.count("b") == 1
    assert all(errors[name] and told[name] is None for name in "cde"), "nobody knows which of these have begun"
    assert all(written.count(name) <= 1 for name in "cde")
