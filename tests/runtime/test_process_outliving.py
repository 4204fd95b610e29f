"""Tasks outlive their worker, records outlive their supervisor, and whoever leaves leaves nothing behind."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from tests.runtime.tasks import (
    HOSTILE,
    A,
    B,
    Ends,
    Signpost,
    gone,
    is_alive,
    launch,
    processes_of,
    shell,
    supervisor_pid,
)

import ostler
from ostler.runtime.process import ProcessRuntime, Replaced

SOURCE = Path(ostler.__file__).parent.parent


WORKER = """
import asyncio, sys
from pathlib import Path
from ostler.runtime.base import Launch
from ostler.runtime.process import ProcessRuntime

async def work():
    runtime = ProcessRuntime(Path(sys.argv[1]), idle_exit_s=5.0)
    await runtime.open()
    for attempt, script in zip(sys.argv[2::2], sys.argv[3::2]):
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "OSTLER_ATTEMPT": attempt}
        await runtime.launch(Launch(attempt=attempt, task_id="t-" + attempt, argv=["sh", "-c", script], env=env))
    await asyncio.sleep(1000)

asyncio.run(work())
"""


async def _start_and_kill_a_worker(folder: Path, posts: list[Signpost], scripts: dict[str, str]) -> None:
    """A worker process of its own launches these, and is killed once every post was reached."""
    arguments = [word for pair in scripts.items() for word in pair]
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, str(folder), *arguments, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    try:
        for post in posts:
            await post.read()
    finally:
        worker.kill()
        await worker.wait()


async def test_tasks_outlive_a_killed_worker_and_the_next_one_takes_them_back(tmp_path: Path) -> None:
    started, release, second = (Signpost(tmp_path / name) for name in ("started", "release", "second"))
    folder = tmp_path / "state"
    runs = f"echo > {started.path}; read code < {release.path}; echo done; exit $code"
    await _start_and_kill_a_worker(folder, [started, second], {A: runs, B: f"echo > {second.path}; exit 6"})
    assert processes_of(A), "kill -9 of the worker does not kill its task"
    runtime = ProcessRuntime(folder, idle_exit_s=5.0)
    held = {one.attempt: one for one in await runtime.open()}
    ends = Ends(runtime)
    assert (held[B].ended or await ends.of(B)).exit_code == 6
    assert held[A].ended is None
    assert held[A].task_id == f"t-{A}"
    assert held[A].started_at == pytest.approx(time.time(), abs=30.0)
    release.write("9\n")
    assert (await ends.of(A)).exit_code == 9
    assert (runtime.folder(A) / "log").read_text() == "done\n"
    await runtime.close(stop_tasks=True)


async def test_an_end_that_nobody_saw_is_held_until_it_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    first = ProcessRuntime(folder, idle_exit_s=5.0)
    await first.open()
    seen = Ends(first)
    await first.launch(shell(A, "exit 3"))
    await seen.of(A)
    await first.close(stop_tasks=False)
    await seen.finished()

    second = ProcessRuntime(folder, idle_exit_s=5.0)
    (held,) = await second.open()
    assert held.ended is not None
    assert held.ended.exit_code == 3
    await second.forget(A)
    await second.close(stop_tasks=True)

    third = ProcessRuntime(folder, idle_exit_s=5.0)
    assert await third.open() == []
    await third.close(stop_tasks=True)


async def test_ends_survive_the_supervisor(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    runtime = ProcessRuntime(folder, idle_exit_s=5.0)
    await runtime.open()
    ends = Ends(runtime)
    for attempt in ("kept", "forgotten"):
        await runtime.launch(shell(attempt, "exit 3"))
        await ends.of(attempt)
    await runtime.forget("forgotten")
    await runtime.close(stop_tasks=True)
    runtime = ProcessRuntime(folder, idle_exit_s=5.0)
    held = await runtime.open()
    assert [(one.attempt, one.ended and one.ended.exit_code) for one in held] == [("kept", 3)]
    await runtime.close(stop_tasks=True)


async def test_a_killed_supervisor_is_replaced_and_its_tasks_are_cleaned_up(
    runtime: ProcessRuntime, ends: Ends, post: Signpost, tmp_path: Path
) -> None:
    """Daemons too, although they are nobody's children by then."""
    script = HOSTILE + "while True: time.sleep(60)"
    await runtime.launch(launch(A, sys.executable, "-SsE", "-c", script, str(post.path)))
    pids = [int(pid) for pid in (await post.read()).split()]
    first = supervisor_pid(tmp_path / "state")
    os.kill(first, signal.SIGKILL)
    end = await ends.of(A)
    assert (end.exit_code, end.task_id) == (137, f"task-of-{A}")
    assert end.error == "supervisor was killed; exit code unknown"
    assert processes_of(A) == []
    assert supervisor_pid(tmp_path / "state") != first
    await runtime.launch(launch(B, "true"))
    assert (await ends.of(B)).exit_code == 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # the one that shed its environment, its session and its parents


async def test_after_both_were_killed_the_next_worker_finds_everything_cleaned_before_it_registers(
    tmp_path: Path,
) -> None:
    posts = [Signpost(tmp_path / name) for name in ("first", "second")]
    folder = tmp_path / "state"
    scripts = {name: f"echo > {post.path}; exec sleep 1000" for name, post in zip((A, B), posts, strict=True)}
    await _start_and_kill_a_worker(folder, posts, scripts)
    os.kill(supervisor_pid(folder), signal.SIGKILL)
    await gone(supervisor_pid(folder))
    for pid in processes_of(B):
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
    runtime = ProcessRuntime(folder, idle_exit_s=5.0)
    held = {one.attempt: one.ended for one in await runtime.open()}
    runs, ended = held[A], held[B]
    assert runs is not None
    assert ended is not None
    assert runs.error == "supervisor was killed; exit code unknown"
    assert ended.error == "ended while nobody watched"
    assert runs.exit_code == ended.exit_code == 137
    assert processes_of(A) == []
    await runtime.close(stop_tasks=True)


async def test_commands_given_while_the_supervisor_is_down_are_carried_out(
    runtime: ProcessRuntime, ends: Ends, tmp_path: Path
) -> None:
    await runtime.launch(launch("old", "true"))
    await ends.of("old")
    supervisor = supervisor_pid(tmp_path / "state")
    os.kill(supervisor, signal.SIGKILL)
    await gone(supervisor)
    await runtime.forget("old")
    await runtime.launch(shell(A, "exit 3"))
    await runtime.launch(launch(B, "sleep", "1000"))
    await runtime.stop(B, "cancelled", 5.0)
    assert (await ends.of(A)).exit_code == 3
    assert (await ends.of(B)).stopped == "cancelled"
    await runtime.close(stop_tasks=False)
    again = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    assert sorted(one.attempt for one in await again.open()) == [A, B]
    await again.close(stop_tasks=True)


async def test_what_waited_for_a_task_of_a_killed_supervisor_starts_all_the_same(
    runtime: ProcessRuntime, ends: Ends, post: Signpost, tmp_path: Path
) -> None:
    await runtime.launch(shell(A, f"echo > {post.path}; exec sleep 1000"))
    await runtime.launch(shell(B, "exit 3", after=[A]))
    await post.read()
    os.kill(supervisor_pid(tmp_path / "state"), signal.SIGKILL)
    assert (await ends.of(A)).error == "supervisor was killed; exit code unknown"
    assert (await ends.of(B)).exit_code == 3


async def test_a_stale_socket_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "state" / "supervisor.sock"))
    runtime = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    assert await runtime.open() == []
    await runtime.close(stop_tasks=True)


async def test_a_folder_with_a_long_name_works(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / ("y" * 120)
    runtime = ProcessRuntime(folder, idle_exit_s=5.0)
    await runtime.open()
    ends = Ends(runtime)
    await runtime.launch(launch(A, "true"))
    assert (await ends.of(A)).exit_code == 0
    await runtime.close(stop_tasks=True)


async def test_two_that_open_a_new_folder_at_once_share_one_supervisor(tmp_path: Path) -> None:
    runtimes = [ProcessRuntime(tmp_path / "state", idle_exit_s=5.0) for _ in range(3)]
    results = await asyncio.gather(*(runtime.open() for runtime in runtimes), return_exceptions=True)
    assert [] in results
    assert is_alive(supervisor_pid(tmp_path / "state"))
    for runtime in runtimes:
        await runtime.close(stop_tasks=True)


async def test_a_newer_worker_replaces_the_older_one_which_is_told(tmp_path: Path) -> None:
    older = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    await older.open()
    newer = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    await newer.open()
    with pytest.raises(Replaced):
        await Ends(older).finished()
    ends = Ends(newer)
    await newer.launch(launch(A, "true"))
    assert (await ends.of(A)).exit_code == 0
    await older.close(stop_tasks=False)
    await newer.close(stop_tasks=True)


async def test_close_with_stop_tasks_leaves_no_process_and_tells_every_end_first(
    tmp_path: Path, post: Signpost
) -> None:
    runtime = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    await runtime.open()
    ends = Ends(runtime)
    await runtime.launch(shell(A, f"trap '' TERM; echo > {post.path}; while :; do sleep 0.1; done", grace_s=0.2))
    await runtime.launch(launch(B, "sleep", "1000"))
    await post.read()
    supervisor = supervisor_pid(tmp_path / "state")
    await runtime.close(stop_tasks=True)
    await ends.finished()
    assert {(end.attempt, end.exit_code, end.stopped) for end in ends.seen} == {
        (A, 137, "shutdown"),
        (B, 143, "shutdown"),
    }
    await gone(supervisor)
    assert processes_of(A) == processes_of(B) == []


async def test_a_supervisor_that_has_nothing_to_do_and_nobody_to_tell_leaves(tmp_path: Path) -> None:
    runtime = ProcessRuntime(tmp_path / "state", idle_exit_s=0.1)
    await runtime.open()
    ends = Ends(runtime)
    await runtime.launch(launch(A, "true"))
    await ends.of(A)
    supervisor = supervisor_pid(tmp_path / "state")
    await runtime.close(stop_tasks=False)
    await gone(supervisor)
    again = ProcessRuntime(tmp_path / "state", idle_exit_s=0.1)
    assert [one.attempt for one in await again.open()] == [A], "an end that was not forgotten is still known"
    await again.close(stop_tasks=True)


async def test_a_supervisor_stays_while_a_task_runs_and_keeps_its_deadline(tmp_path: Path) -> None:
    runtime = ProcessRuntime(tmp_path / "state", idle_exit_s=0.05)
    await runtime.open()
    await runtime.launch(launch(A, "sleep", "1000", deadline_s=0.5))
    supervisor = supervisor_pid(tmp_path / "state")
    await runtime.close(stop_tasks=False)
    await gone(supervisor)
    again = ProcessRuntime(tmp_path / "state", idle_exit_s=0.05)
    (held,) = await again.open()
    assert held.ended is not None
    assert (held.ended.exit_code, held.ended.stopped) == (143, "max_runtime")
    await again.close(stop_tasks=True)


async def test_sigterm_to_the_supervisor_stops_its_tasks_and_records_their_ends(tmp_path: Path, post: Signpost) -> None:
    runtime = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    await runtime.open()
    await runtime.launch(shell(A, f"echo > {post.path}; exec sleep 1000"))
    await post.read()
    await runtime.close(stop_tasks=False)
    supervisor = supervisor_pid(tmp_path / "state")
    os.kill(supervisor, signal.SIGTERM)
    await gone(supervisor)
    again = ProcessRuntime(tmp_path / "state", idle_exit_s=5.0)
    (held,) = await again.open()
    assert held.ended is not None
    assert (held.ended.exit_code, held.ended.stopped) == (143, "shutdown")
    await again.close(stop_tasks=True)


async def test_forget_of_a_running_attempt_is_a_mistake(runtime: ProcessRuntime) -> None:
    await runtime.launch(launch(A, "sleep", "1000"))
    with pytest.raises(ValueError, match="has not ended"):
        await runtime.forget(A)
