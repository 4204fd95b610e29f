"""Stopping real tasks, with everything that they started."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.runtime.tasks import HOSTILE, WAIT_S, A, B, Ends, Signpost, is_alive, launch, processes_of, python, shell

from ostler.runtime.process import ProcessRuntime


async def test_stop_sends_sigterm_and_tells_the_reason(runtime: ProcessRuntime, ends: Ends, post: Signpost) -> None:
    await runtime.launch(shell(A, f"trap 'echo bye; exit 5' TERM; echo > {post.path}; while :; do sleep 0.01; done"))
    await post.read()
    await runtime.stop(A, "cancelled by its owner", 10.0)
    end = await ends.of(A)
    assert (end.exit_code, end.stopped) == (5, "cancelled by its owner")
    assert (runtime.folder(A) / "log").read_text().endswith("bye\n")


async def test_a_task_that_ignores_sigterm_is_killed_after_the_grace(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    await runtime.launch(shell(A, f"trap '' TERM; echo > {post.path}; while :; do sleep 0.1; done"))
    await post.read()
    begin = time.monotonic()
    await runtime.stop(A, "cancelled", 0.3)
    end = await ends.of(A)
    assert time.monotonic() - begin >= 0.3
    assert (end.exit_code, end.stopped) == (137, "cancelled")
    assert processes_of(A) == []


async def test_a_task_with_a_command_that_stops_it_is_stopped_by_that_and_not_by_sigterm(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    waits = f"trap 'exit 5' TERM; trap 'echo in time; exit 7' USR1; echo > {post.path}; while :; do sleep 0.01; done"
    stop = ["sh", "-c", "echo asked for $OSTLER_ATTEMPT; kill -USR1 $0", "{pid}"]
    await runtime.launch(shell(A, waits, stop=stop))
    await post.read()
    await runtime.stop(A, "cancelled", 60.0)
    end = await ends.of(A)
    assert (end.exit_code, end.stopped) == (7, "cancelled")
    assert f"asked for {A}\nin time\n" in (runtime.folder(A) / "log").read_text()


@pytest.mark.parametrize("stop", [["true"], ["sleep", "600"], ["no-such-program"]])
async def test_a_command_that_does_not_stop_its_task_in_time_is_followed_by_sigterm(
    runtime: ProcessRuntime, ends: Ends, post: Signpost, stop: list[str]
) -> None:
    waits = f"trap 'exit 5' TERM; echo > {post.path}; while :; do sleep 0.01; done"
    await runtime.launch(shell(A, waits, stop=stop))
    await post.read()
    await runtime.stop(A, "cancelled", 0.2)
    end = await ends.of(A)
    assert (end.exit_code, end.stopped) == (5, "cancelled")
    assert processes_of(A) == []


async def test_a_second_stop_can_only_shorten_the_grace(runtime: ProcessRuntime, ends: Ends, post: Signpost) -> None:
    await runtime.launch(shell(A, f"trap '' TERM; echo > {post.path}; while :; do sleep 0.1; done"))
    await post.read()
    await runtime.stop(A, "first", 60.0)
    await runtime.stop(A, "second", 0.0)
    await runtime.stop(A, "third", 60.0)
    end = await ends.of(A)
    assert (end.exit_code, end.stopped) == (137, "first")


async def test_a_task_that_is_stopped_by_sigstop_still_gets_its_sigterm(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    await runtime.launch(shell(A, f"echo $$ > {post.path}; exec sleep 1000"))
    os.kill(int(await post.read()), signal.SIGSTOP)
    await runtime.stop(A, "cancelled", 60.0)
    assert (await ends.of(A)).exit_code == 128 + signal.SIGTERM


async def test_stop_of_an_unknown_attempt_is_ignored(runtime: ProcessRuntime, ends: Ends) -> None:
    await runtime.stop("nobody", "cancelled", 1.0)
    await runtime.launch(launch(A, "true"))
    assert (await ends.of(A)).exit_code == 0


async def test_the_deadline_is_kept_without_the_worker_doing_anything(runtime: ProcessRuntime, ends: Ends) -> None:
    begin = time.monotonic()
    await runtime.launch(launch(A, "sleep", "1000", deadline_s=0.3))
    end = await ends.of(A)
    assert time.monotonic() - begin >= 0.3
    assert (end.exit_code, end.stopped) == (143, "max_runtime")


async def test_a_tree_that_daemonises_and_ignores_sigterm_leaves_nothing(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    script = HOSTILE + "while True: time.sleep(60)"
    await runtime.launch(launch(A, sys.executable, "-SsE", "-c", script, str(post.path)))
    pids = [int(pid) for pid in (await post.read()).split()]
    assert len(pids) == 5
    assert all(map(is_alive, pids))
    await runtime.stop(A, "cancelled", 0.2)
    end = await ends.of(A)
    assert (end.exit_code, end.stopped) == (137, "cancelled")
    assert not any(map(is_alive, pids))
    assert processes_of(A) == []


async def test_what_a_task_leaves_behind_is_killed_before_its_end_is_told(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    await runtime.launch(launch(A, sys.executable, "-SsE", "-c", HOSTILE + "os._exit(4)", str(post.path), grace_s=0.2))
    pids = [int(pid) for pid in (await post.read()).split()]
    end = await ends.of(A)
    assert (end.exit_code, end.stopped, end.error) == (4, "", "")
    assert not any(map(is_alive, pids))
    assert processes_of(A) == []


async def test_a_straggler_that_obeys_sigterm_goes_at_once_and_may_say_goodbye(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    straggler = f"trap 'echo bye; exit' TERM; echo > {post.path}; while :; do sleep 0.01; done"
    await runtime.launch(shell(A, f'setsid sh -c "{straggler}" & read go < {post.path}', grace_s=60.0))
    end = await ends.of(A)
    assert (end.exit_code, end.stopped) == (0, "")
    assert (runtime.folder(A) / "log").read_text().endswith("bye\n")


async def test_every_process_of_a_straggling_group_gets_its_sigterm(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    loop = "while :; do sleep 0.01; done"
    member = f"(trap 'echo member; exit' TERM; echo > {post.path}; {loop})"
    leader = f"trap 'echo leader; exit' TERM; {member} & {loop}"
    await runtime.launch(shell(A, f'setsid sh -c "{leader}" & read go < {post.path}', grace_s=60.0))
    assert (await ends.of(A)).exit_code == 0
    assert {"leader", "member"} <= set((runtime.folder(A) / "log").read_text().split())


async def test_a_daemon_without_any_mark_goes_with_the_last_task_that_may_have_started_it(
    runtime: ProcessRuntime, ends: Ends, post: Signpost, tmp_path: Path
) -> None:
    release = Signpost(tmp_path / "release")
    await runtime.launch(shell(B, f"read code < {release.path}; exit $code"))
    await runtime.launch(launch(A, sys.executable, "-SsE", "-c", HOSTILE + "os._exit(4)", str(post.path), grace_s=0.1))
    pids = [int(pid) for pid in (await post.read()).split()]
    assert (await ends.of(A)).exit_code == 4
    assert sum(map(is_alive, pids)) == 1, "it could be the other's, which still runs"
    release.write("5\n")
    assert (await ends.of(B)).exit_code == 5
    assert not any(map(is_alive, pids))


async def test_a_task_that_forks_away_again_and_again_is_caught(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    comet = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
until = time.monotonic() + {WAIT_S}
told = False
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
    if not told:
        told = True
        open({str(post.path)!r}, "w").write("away")
"""
    await runtime.launch(python(A, comet, grace_s=0.1))
    await post.read()
    end = await ends.of(A)
    assert end.exit_code == 0
    assert processes_of(A) == []


async def test_a_task_that_multiplies_while_it_is_killed_is_killed_all_the_same(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    script = f"""
    trap '' TERM
    i=0
    while :; do
        setsid sleep 5 &
        i=$((i + 1))
        [ $i = 5 ] && echo > {post.path}
        sleep 0.005
    done
    """
    await runtime.launch(shell(A, script))
    await post.read()
    await runtime.stop(A, "cancelled", 0.1)
    assert (await ends.of(A)).exit_code == 137
    assert processes_of(A) == []


async def test_one_task_s_end_does_not_touch_another_s_daemons(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    await runtime.launch(shell(A, f"(setsid sh -c 'echo $$ > {post.path}; exec sleep 1000' &); exec sleep 1000"))
    daemon = int(await post.read())
    for number in range(5):
        await runtime.launch(shell(f"{B}-{number}", "(setsid sleep 1000 &) ; exit 0", grace_s=0.1))
        assert (await ends.of(f"{B}-{number}")).exit_code == 0
        assert processes_of(f"{B}-{number}") == []
    assert is_alive(daemon)
    await runtime.stop(A, "cancelled", 5.0)
    await ends.of(A)
    assert not is_alive(daemon)


@pytest.mark.parametrize("made", ["mkfifo", "mkdir"])
async def test_whatever_a_task_makes_of_its_log_it_can_be_stopped_and_keeps_nobody_else_waiting(
    runtime: ProcessRuntime, ends: Ends, post: Signpost, made: str
) -> None:
    script = f"rm ../log; {made} ../log; echo > {post.path}; exec sleep 600"
    await runtime.launch(shell(A, script, grace_s=0.2, stop=["echo", "bye"]))
    await post.read()
    await runtime.stop(A, "cancelled", 0.2)
    await runtime.launch(shell(B, "exit 3"))
    assert (await ends.of(B)).exit_code == 3
    end = await ends.of(A)
    assert (end.stopped, end.error) == ("cancelled", "")
    assert processes_of(A) == []
