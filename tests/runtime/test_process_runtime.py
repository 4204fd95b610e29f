"""Tasks as real processes, through a real supervisor: how they start, what they find, how they end."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.runtime.tasks import PATH, A, B, Ends, launch, shell

from ostler.runtime.process import ProcessRuntime


async def test_the_exit_code_is_the_process_s_own(runtime: ProcessRuntime, ends: Ends) -> None:
    before = time.time()
    await runtime.launch(shell(A, "exit 7"))
    end = await ends.of(A)
    assert (end.exit_code, end.task_id, end.error, end.stopped) == (7, f"task-of-{A}", "", "")
    assert before <= end.finished_at <= time.time()


async def test_death_by_signal_n_shows_as_128_plus_n(runtime: ProcessRuntime, ends: Ends) -> None:
    await runtime.launch(shell(A, "kill -USR1 $$"))
    end = await ends.of(A)
    assert (end.exit_code, end.stopped) == (128 + signal.SIGUSR1, "")


async def test_standard_output_and_error_are_in_the_log_in_order(runtime: ProcessRuntime, ends: Ends) -> None:
    await runtime.launch(shell(A, "echo one; echo two >&2; echo three"))
    await ends.of(A)
    assert (runtime.folder(A) / "log").read_text() == "one\ntwo\nthree\n"


async def test_the_environment_is_exactly_the_one_given(runtime: ProcessRuntime, ends: Ends) -> None:
    env = {"PATH": PATH, "ODD": "a=b\nc \u00e4\U0001f600", "EMPTY": "", "RAW": os.fsdecode(b"\xff\xfe")}
    await runtime.launch(launch(A, "env", "-0", env=env))
    await ends.of(A)
    printed = (runtime.folder(A) / "log").read_bytes().rstrip(b"\0").split(b"\0")
    assert sorted(printed) == sorted(os.fsencode(f"{name}={value}") for name, value in env.items())


async def test_a_task_finds_its_own_folder_files_and_nothing_on_standard_input(
    runtime: ProcessRuntime, ends: Ends
) -> None:
    script = "pwd -P; ls ..; cat; cat ../spec.bin; ls -d ../out; ps -o sid=,pgid= -p $$ | tr -d ' \\n' | grep -c $$"
    await runtime.launch(shell(A, script, files={"spec.bin": b"given\n"}))
    assert (await ends.of(A)).exit_code == 0
    folder = runtime.folder(A)
    printed = (folder / "log").read_text().split()
    assert printed == [str((folder / "work").resolve()), "log", "out", "spec.bin", "work", "given", "../out", "1"]


async def test_a_task_starts_with_no_signal_blocked_or_ignored_and_no_descriptor_of_ours(
    runtime: ProcessRuntime, ends: Ends
) -> None:
    await runtime.launch(launch(A, "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"))
    await runtime.launch(launch(B, "ls", "/proc/self/fd"))
    await ends.of(A)
    await ends.of(B)
    _, blocked, _, ignored = (runtime.folder(A) / "log").read_text().split()
    of_the_c_library = 1 << 31 | 1 << 32  # 32 and 33, which it never lets a program use
    assert (int(blocked, 16), int(ignored, 16) & ~of_the_c_library) == (0, 0)
    assert (runtime.folder(B) / "log").read_text().split() == ["0", "1", "2", "3"], "the last is the list's own"


async def test_a_program_that_is_nowhere_ends_with_127_and_says_so(runtime: ProcessRuntime, ends: Ends) -> None:
    await runtime.launch(launch(A, "no-such-program", "--really"))
    end = await ends.of(A)
    assert end.exit_code == 127
    assert end.error == "program 'no-such-program' not found on this worker's PATH"


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([], 127, "the command is empty"),
        (["./nothing-here"], 127, "program './nothing-here' not found on this worker"),
        (["../plain.txt"], 126, "program '../plain.txt' could not be started: Permission denied"),
        (["../bad-interpreter.sh"], 127, "names an interpreter that is not on this worker"),
        (["plain"], 126, "program 'plain' is not executable"),
        (["true", "nul\0byte"], 126, "program 'true' could not be started"),
    ],
)
async def test_what_cannot_be_started_ends_at_once_with_the_reason(
    argv: list[str], code: int, words: str, runtime: ProcessRuntime, ends: Ends, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("not a program")
    folder = runtime.folder(A)
    folder.mkdir()
    (folder / "plain.txt").write_text("not a program")
    (folder / "bad-interpreter.sh").write_text("#!/no/such/interpreter\n")
    (folder / "bad-interpreter.sh").chmod(0o700)
    await runtime.launch(launch(A, *argv, env={"PATH": f"{PATH}:{tmp_path}"}))
    end = await ends.of(A)
    assert end.exit_code == code
    assert words in end.error


async def test_programs_are_looked_up_by_the_task_s_own_path(
    runtime: ProcessRuntime, ends: Ends, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        tool = tmp_path / name / "tool"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\necho {name}\n")
        tool.chmod(0o700)
    await runtime.launch(launch(A, "tool", env={"PATH": f"{tmp_path}/one:{tmp_path}/two"}))
    await runtime.launch(launch(B, "tool", env={"PATH": f"{tmp_path}/two:{tmp_path}/one"}))
    await ends.of(A)
    await ends.of(B)
    assert [(runtime.folder(name) / "log").read_text() for name in (A, B)] == ["one\n", "two\n"]


async def test_a_folder_that_the_worker_prepared_is_used_as_it_is(runtime: ProcessRuntime, ends: Ends) -> None:
    work = runtime.folder(A) / "work"
    work.mkdir(parents=True)
    (work / "train.sh").write_text("echo from the snapshot\n")
    await runtime.launch(launch(A, "sh", "train.sh"))
    assert (await ends.of(A)).exit_code == 0
    assert (runtime.folder(A) / "log").read_text() == "from the snapshot\n"


async def test_a_second_launch_of_an_attempt_does_nothing(runtime: ProcessRuntime, ends: Ends) -> None:
    await runtime.launch(shell(A, "echo started"))
    await runtime.launch(shell(A, "echo started"))
    await ends.of(A)
    await runtime.launch(shell(A, "echo started"))
    await runtime.launch(shell(B, "exit 0"))
    await ends.of(B)
    assert (runtime.folder(A) / "log").read_text() == "started\n"
    assert [end.attempt for end in ends.seen] == [A, B]


async def test_a_launch_after_the_attempt_was_forgotten_tells_its_end_again_and_starts_nothing(
    runtime: ProcessRuntime, ends: Ends
) -> None:
    await runtime.launch(shell(A, "echo started; exit 3"))
    await ends.of(A)
    await runtime.forget(A)
    ends.seen.clear()
    await runtime.launch(shell(A, "echo started; exit 3"))
    assert (await ends.of(A)).exit_code == 3
    assert (runtime.folder(A) / "log").read_text() == "started\n"


@pytest.mark.parametrize("attempt", ["", ".", "..", "../x", "a/b", "/etc", "a b", "a\0", "ä", "x" * 65, "a\n", ".a"])
async def test_hostile_attempt_ids_are_refused(attempt: str, runtime: ProcessRuntime) -> None:
    with pytest.raises(ValueError, match="not an attempt id"):
        await runtime.launch(launch(attempt, "true"))
    with pytest.raises(ValueError, match="not an attempt id"):
        runtime.folder(attempt)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/x", "log", "work", "out", "x\0y"])
async def test_hostile_file_names_are_refused(name: str, runtime: ProcessRuntime) -> None:
    with pytest.raises(ValueError, match="not a plain file name"):
        await runtime.launch(launch(A, "true", files={name: b""}))


async def test_two_hundred_trues_in_a_row_all_end_with_0(runtime: ProcessRuntime, ends: Ends) -> None:
    for number in range(200):
        await runtime.launch(launch(f"{A}-{number}", "true"))
        assert (await ends.of(f"{A}-{number}")).exit_code == 0
        await runtime.forget(f"{A}-{number}")
    assert len(ends.seen) == 200


async def test_many_at_once_all_end(runtime: ProcessRuntime, ends: Ends) -> None:
    for number in range(100):
        await runtime.launch(shell(f"{A}-{number}", f"exit {number}"))
    for number in range(100):
        assert (await ends.of(f"{A}-{number}")).exit_code == number


async def test_a_start_that_fails_does_not_hold_up_those_that_come_after_it(
    runtime: ProcessRuntime, ends: Ends
) -> None:
    names = [f"{A}-{number}" for number in range(4)]
    for name, before, program in zip(names, ["", *names], ["true", "no-such", "no-such", "true"], strict=False):
        await runtime.launch(launch(name, program, after=[before]))
    assert [(await ends.of(name)).exit_code for name in names] == [0, 127, 127, 0]
    assert [end.attempt for end in ends.seen] == names


async def test_a_folder_that_was_left_empty_serves_again_and_one_with_a_trace_of_its_task_never(
    runtime: ProcessRuntime, ends: Ends
) -> None:
    traces = ["echo x", "touch f", "touch ../out/f", "touch ../f", "chmod 755 .", "chmod 755 ../out", "ln ../log ../l"]
    for number, trace in enumerate(traces):
        await runtime.launch(shell(f"{A}-{number}", trace))
        assert (await ends.of(f"{A}-{number}")).exit_code == 0
        await runtime.forget(f"{A}-{number}")
        await runtime.launch(shell(f"{B}-{number}", "ls -a . ../out ..; stat -c %a . ../out; cat ../log"))
        await ends.of(f"{B}-{number}")
    logs = {(runtime.folder(f"{B}-{number}") / "log").read_text() for number in range(len(traces))}
    assert len(logs) == 1, "every task finds the same: a new folder"
    assert all(runtime.folder(f"{A}-{number}").exists() for number in range(len(traces)))


async def test_output_of_many_megabytes_goes_to_the_log_and_nowhere_else(runtime: ProcessRuntime, ends: Ends) -> None:
    await runtime.launch(launch(A, "head", "-c", "100000000", "/dev/zero"))
    assert (await ends.of(A)).exit_code == 0
    assert (runtime.folder(A) / "log").stat().st_size == 100_000_000
    (runtime.folder(A) / "log").unlink()
