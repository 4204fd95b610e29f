"""Functions in interpreters that are kept: few for many calls, and each call as safe as in a process of its own."""

import asyncio
import base64
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
from tests.runtime.tasks import Ends, Signpost, gone, is_alive, supervisor_pid

from ostler.runtime import warm
from ostler.runtime.base import Launch
from ostler.runtime.process import ProcessRuntime
from ostler.runtime.supervisors import Supervisors

ME = f"w{os.getpid()}"
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no interpreter elsewhere finds this file
NAMES = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONUNBUFFERED": "1"}


class Calls:
    """Launches functions, each as an attempt of its own, and opens what they leave."""

    def __init__(self, runtime: ProcessRuntime | Supervisors, ends: Ends) -> None:
        self.runtime, self.ends = runtime, ends
        self.count = 0

    async def start(self, fn: Callable[..., Any], *args: Any, env: dict[str, str] | None = None, **more: Any) -> str:
        self.count += 1
        payload = cloudpickle.dumps(("call", fn, args, {}))
        return await self.start_payload(f"{ME}-{self.count}", {"call.pkl": payload}, "", 0, env or {}, **more)

    async def start_payload(
        self, attempt: str, files: dict[str, bytes], path: str, index: int, env: dict[str, str], **more: Any
    ) -> str:
        folder = self.runtime.folder(attempt)
        own = {
            "OSTLER_ATTEMPT": attempt,
            "OSTLER_CALL": path or str(folder / "call.pkl"),
            "OSTLER_RESULT": str(folder / "result.pkl"),
            "OSTLER_INDEX": str(index),
        }
        await self.runtime.launch(
            Launch(
                attempt=attempt,
                task_id="t",
                argv=[sys.executable, "-m", "ostler.task.call"],
                env={**NAMES, **env, **own},
                files=files,
                **{"warm": repr(sorted(env.items())), "grace_s": 5.0, **more},
            )
        )
        return attempt

    async def value(self, fn: Callable[..., Any], *args: Any, **more: Any) -> Any:
        attempt = await self.start(fn, *args, **more)
        end = await self.ends.of(attempt)
        assert (end.exit_code, end.error) == (0, ""), self.log(attempt)
        return self.opened(attempt)[1]

    def opened(self, attempt: str) -> Any:
        """A small result comes with the end, any other in its file; never both."""
        file = self.runtime.folder(attempt) / "result.pkl"
        inline = next(end.result for end in self.ends.seen if end.attempt == attempt)
        assert bool(inline) != file.exists()
        return pickle.loads(base64.b64decode(inline) or file.read_bytes())

    def log(self, attempt: str) -> str:
        return (self.runtime.folder(attempt) / "log").read_text()


@pytest.fixture
async def calls(runtime: ProcessRuntime, ends: Ends) -> Calls:
    return Calls(runtime, ends)


async def test_many_calls_one_after_another_share_one_interpreter(calls: Calls) -> None:
    pids = [await calls.value(os.getpid) for _ in range(20)]
    assert len(set(pids)) == 1
    assert os.getsid(pids[0]) == pids[0], "in a session of its own"


async def test_calls_at_once_have_an_interpreter_each_and_these_serve_the_next_ones(
    calls: Calls, tmp_path: Path
) -> None:
    release = Signpost(tmp_path / "release")
    started = Signpost(tmp_path / "started")

    def wait(started: str, release: str) -> int:
        with open(started, "w") as file:
            file.write("x")
        with open(release, "rb", buffering=0) as file:
            file.read(1)
        return os.getpid()

    both = [await calls.start(wait, str(started.path), str(release.path)) for _ in range(2)]
    seen = ""
    while len(seen) < 2:
        seen += await started.read()
    release.write("xx")
    assert {(await calls.ends.of(attempt)).exit_code for attempt in both} == {0}
    pids = {calls.opened(attempt)[1] for attempt in both}
    assert len(pids) == 2
    assert await calls.value(os.getpid) in pids


async def test_every_call_prints_into_its_own_log_and_runs_in_its_own_folder(calls: Calls) -> None:
    def speak(word: str) -> str:
        print("out", word)
        os.system(f"echo shell {word}")
        print("err", word, file=sys.stderr)
        return os.getcwd()

    for word in ("one", "two", "three"):
        attempt = await calls.start(speak, word)
        assert (await calls.ends.of(attempt)).exit_code == 0
        assert calls.log(attempt) == f"out {word}\nshell {word}\nerr {word}\n"
        assert calls.opened(attempt) == ("value", str(calls.runtime.folder(attempt) / "work"))


@pytest.mark.parametrize(
    ("fn", "exit_code", "same"),
    [
        (lambda: 1 / 0, 1, True),
        (lambda: sys.exit(5), 1, True),
        (lambda: os._exit(3), 3, False),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), 137, False),
        (lambda: os.write(3, b"nonsense\n") and time.sleep(60), 137, False),
    ],
    ids=["exception", "sys.exit", "os._exit", "SIGKILL", "an answer that is none"],
)
async def test_a_call_that_goes_wrong_costs_nobody_else(
    calls: Calls, fn: Callable[[], Any], exit_code: int, same: bool
) -> None:
    before = await calls.value(os.getpid)
    attempt = await calls.start(fn)
    assert (await calls.ends.of(attempt)).exit_code == exit_code
    assert (await calls.value(os.getpid) == before) == same


async def test_an_exception_is_in_the_result_and_in_the_log_as_without_a_warm_interpreter(calls: Calls) -> None:
    texts = []
    for key in ("", "warm"):
        attempt = await calls.start(lambda: {}["missing"], warm=key)
        assert (await calls.ends.of(attempt)).exit_code == 1
        kind, error, text, name = calls.opened(attempt)
        assert (kind, type(error), name) == ("error", KeyError, "KeyError")
        assert calls.log(attempt) == text
        texts.append(text)
    assert texts[0] == texts[1]


async def test_the_environment_of_one_key_is_not_seen_by_another_nor_what_a_call_changes_by_the_next(
    calls: Calls,
) -> None:
    def change() -> int:
        os.environ["SECRET"] = "changed"
        os.environ["LEFT"] = "1"
        del os.environ["PATH"]
        sys.path.insert(0, "/nowhere")
        return os.getpid()

    pid = await calls.value(change, env={"SECRET": "ann's"})
    seen = lambda: (os.getpid(), dict(os.environ), list(sys.path))  # noqa: E731
    same, env, path = await calls.value(seen, env={"SECRET": "ann's"})
    assert (same, env["SECRET"], env["PATH"]) == (pid, "ann's", NAMES["PATH"])
    assert "LEFT" not in env
    assert "/nowhere" not in path
    assert env["OSTLER_ATTEMPT"] == f"{ME}-2"
    other, env, _ = await calls.value(seen, env={"HERS": "1"})
    assert other != pid
    assert "SECRET" not in env


async def test_a_stop_kills_the_interpreter_and_the_next_call_has_another(calls: Calls, post: Signpost) -> None:
    def stay(path: str) -> None:
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(60)

    attempt = await calls.start(stay, str(post.path))
    pid = int(await post.read())
    await calls.runtime.stop(attempt, "by ann", 5.0)
    end = await calls.ends.of(attempt)
    assert (end.exit_code, end.stopped) == (143, "by ann")
    assert not is_alive(pid)
    assert await calls.value(os.getpid) != pid


async def test_a_deadline_ends_a_call_even_if_it_ignores_sigterm(calls: Calls, post: Signpost) -> None:
    def stay(path: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(60)

    attempt = await calls.start(stay, str(post.path), deadline_s=0.5, grace_s=0.2)
    pid = int(await post.read())
    end = await calls.ends.of(attempt)
    assert (end.exit_code, end.stopped) == (137, "max_runtime")
    assert not is_alive(pid)


def child() -> int:
    import subprocess

    return subprocess.Popen(["sleep", "60"]).pid


def forked_daemon() -> int:
    """Never executes anything: all that its environment shows is that of the interpreter."""
    reader, writer = os.pipe()
    if not os.fork():
        os.setsid()
        os.chdir("/")
        if os.fork():
            os._exit(0)
        os.closerange(0, 3)
        os.write(writer, b"%d" % os.getpid())
        time.sleep(60)
    os.wait()
    return int(os.read(reader, 20))


@pytest.mark.parametrize("leave", [child, forked_daemon])
async def test_what_a_call_leaves_running_is_gone_before_its_end_is_told(
    calls: Calls, leave: Callable[[], int]
) -> None:
    attempt = await calls.start(leave)
    end = await calls.ends.of(attempt)
    assert (end.exit_code, end.stopped) == (0, "")
    assert not is_alive(calls.opened(attempt)[1])
    assert await calls.value(lambda: 42) == 42


def thread() -> int:
    threading.Thread(target=lambda: (time.sleep(0.1), print("last words")), daemon=False).start()
    return os.getpid()


def handler() -> int:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    return os.getpid()


def alarm() -> int:
    signal.alarm(1)
    return os.getpid()


@pytest.mark.parametrize("leave", [thread, handler, alarm])
async def test_an_interpreter_that_is_not_as_before_serves_no_other_call(
    calls: Calls, leave: Callable[[], int]
) -> None:
    attempt = await calls.start(leave)
    assert (await calls.ends.of(attempt)).exit_code == 0
    pid = calls.opened(attempt)[1]
    assert not is_alive(pid)
    assert calls.log(attempt) == ("last words\n" if leave is thread else ""), "a thread may finish, as in any process"
    assert await calls.value(os.getpid) != pid


async def test_a_child_of_the_function_that_returns_from_it_ends_there(calls: Calls) -> None:
    def fork() -> int:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        return os.getpid()

    attempt = await calls.start(fork)
    assert (await calls.ends.of(attempt)).exit_code == 0
    assert await calls.value(os.getpid) == calls.opened(attempt)[1]


async def test_a_shared_payload_is_loaded_once_and_no_call_sees_what_another_did_to_its_argument(
    calls: Calls, tmp_path: Path
) -> None:
    class Counted:
        """Says how often it was loaded, by a file."""

        def __setstate__(self, state: dict[str, Any]) -> None:
            with open(state["path"], "a") as file:
                file.write("x")

    counted = Counted()
    counted.__dict__["path"] = str(tmp_path / "loaded")
    shared: list[int] = []

    def grow(items: list[int], n: int) -> list[int]:
        assert counted is not None
        items.append(n)
        return items

    blob = tmp_path / "blob"
    blob.write_bytes(cloudpickle.dumps(("map", grow, [(shared, n) for n in range(5)])))
    for n in range(5):
        attempt = await calls.start_payload(f"{ME}-map-{n}", {}, str(blob), n, {})
        assert (await calls.ends.of(attempt)).exit_code == 0, calls.log(attempt)
        assert calls.opened(attempt) == ("value", [n])
    assert (tmp_path / "loaded").read_text() == "x"


@pytest.mark.parametrize("size", [0, 1000, 30_000, 33_000, 5_000_000])
async def test_a_value_of_any_size_arrives_whole(calls: Calls, size: int) -> None:
    assert await calls.value(lambda: b"x" * size) == b"x" * size
    assert await calls.value(lambda: 1) == 1


async def test_a_program_that_cannot_be_started_is_told_as_ever(calls: Calls) -> None:
    attempt = f"{ME}-none"
    await calls.runtime.launch(
        Launch(attempt=attempt, task_id="t", argv=["/nowhere/python", "-m", "x"], env=NAMES, warm="key")
    )
    assert (await calls.ends.of(attempt)).exit_code == 127


async def test_no_more_interpreters_than_cores_are_kept_and_none_when_the_supervisor_leaves(
    tmp_path: Path,
) -> None:
    runtime = ProcessRuntime(tmp_path / "s", idle_exit_s=5.0)
    await runtime.open()
    calls = Calls(runtime, Ends(runtime))
    cores = os.cpu_count() or 1
    pids = [await calls.value(os.getpid, env={"KEY": str(n)}) for n in range(cores + 2)]
    for pid in pids[:2]:
        await gone(pid)
    assert all(is_alive(pid) for pid in pids[2:]), "only those that were idle for longest have gone"
    await runtime.close(stop_tasks=True)
    assert [pid for pid in pids if is_alive(pid)] == []


IDLE = """
import os, pickle, select, sys
from ostler.runtime.journal import Journal
from ostler.runtime.keeper import Keeper
from ostler.runtime.processes import open_table
from ostler.runtime.warm import IDLE_S, LEAVING_S

folder, now = sys.argv[1], 1000.0
os.mkdir(folder + "/attempts")
with open(folder + "/call", "wb") as file:
    pickle.dump(("call", os.getpid, (), {}), file)
keeper = Keeper(folder + "/attempts", Journal(folder + "/journal", "boot"), open_table())
env = {**os.environ, "OSTLER_ATTEMPT": "a", "OSTLER_CALL": folder + "/call", "OSTLER_RESULT": folder + "/result"}
order = {"attempt": "a", "task_id": "t", "argv": [sys.executable], "env": env, "warm": "k", "deadline_s": 0, "grace_s": 1}
keeper.launch(order, now)
select.select([keeper.answers_fd], [], [], 20)
keeper.hear(now)
assert len(keeper.take_news()) == 1 and not keeper.busy
pid = keeper._pool._idle[0].pid
keeper.tick(now + 1)
assert keeper.wake_at == now + IDLE_S, keeper.wake_at
keeper.tick(now + IDLE_S)
assert keeper.wake_at == now + IDLE_S + LEAVING_S, keeper.wake_at
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
keeper.reap(now)
assert not keeper._pool._all and not keeper._journal.starts
print("gone")
"""


async def test_an_interpreter_that_nobody_wants_is_sent_away_in_time(tmp_path: Path) -> None:
    source = str(Path(warm.__file__).parent.parent.parent)
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", IDLE, str(tmp_path), env={**NAMES, "PYTHONPATH": source}, stdout=-1, stderr=-1
    )
    out, err = await done.communicate()
    assert (out, err) == (b"gone\n", b"")


async def test_interpreters_of_a_killed_supervisor_are_gone_before_the_next_one_serves(
    tmp_path: Path, post: Signpost
) -> None:
    def stay(path: str) -> None:
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(60)

    folder = tmp_path / "s"
    runtime = ProcessRuntime(folder, idle_exit_s=5.0)
    await runtime.open()
    calls = Calls(runtime, Ends(runtime))
    idle = await calls.value(os.getpid, env={"KEY": "idle"})
    attempt = await calls.start(stay, str(post.path))
    busy = int(await post.read())
    assert psutil.Process(busy).environ()["OSTLER_ATTEMPT"].startswith(warm.NAMES)
    os.kill(supervisor_pid(folder), signal.SIGKILL)
    end = await calls.ends.of(attempt)
    assert (end.exit_code, end.error) == (137, "supervisor was killed; exit code unknown")
    assert not is_alive(busy)
    assert not is_alive(idle)
    assert await calls.value(os.getpid) not in (busy, idle)
    assert [one.attempt for one in calls.ends.seen if one.attempt.startswith(warm.NAMES)] == []
    await runtime.close(stop_tasks=True)


async def test_a_call_outlives_the_worker_that_ordered_it(tmp_path: Path) -> None:
    release = Signpost(tmp_path / "release")
    folder = tmp_path / "s"
    first = ProcessRuntime(folder, idle_exit_s=5.0)
    await first.open()
    calls = Calls(first, Ends(first))
    attempt = await calls.start(lambda path: open(path).readline(), str(release.path))
    await first.close(stop_tasks=False)
    second = ProcessRuntime(folder, idle_exit_s=5.0)
    held = {one.attempt: one for one in await second.open()}
    assert held.keys() == {attempt}
    ends = Ends(second)
    release.write("go\n")
    assert (await ends.of(attempt)).exit_code == 0
    assert Calls(second, ends).opened(attempt) == ("value", "go\n")
    await second.close(stop_tasks=True)


def test_a_variable_with_letters_that_the_locale_does_not_know_is_sent_as_it_is() -> None:
    script = "from ostler.runtime.warm import _encoded; print(ascii(_encoded('A=l\\xe4uft')))"
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    told = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert told.stdout == "b'A=l\\xc3\\xa4uft'\n"
