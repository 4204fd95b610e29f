"""Starting one process: found by the task's own PATH, in its own session, with nothing of ours but its log.

Standard library only: the supervisor imports this.
"""

import errno
import os
import signal

from ostler.runtime.identity import Identity, acting_as

NOT_EXECUTABLE, NOT_FOUND = 126, 127
REMEMBERED_S = 1.0

# Python ignores some signals, and so may whoever started us; a task starts with none ignored, none blocked.
# Those that have a handler here lose it by the start itself.
_IGNORED = [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]
_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class StartFailed(Exception):
    """The program could not be started: the job's author corrects the command."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Programs:
    """Finds programs by a task's own PATH, and remembers for a moment where they were."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], str] = {}
        self._until = 0.0

    def find(self, name: str, path: str, now: float) -> str:
        """Where `name` is, seen from the current directory; a name with a slash is taken as it is."""
        if not name:
            raise StartFailed(NOT_FOUND, "the command is empty")
        if "/" in name:
            return name
        if now >= self._until:
            self._found.clear()
            self._until = now + REMEMBERED_S
        program = self._found.get((name, path), "")
        if not program:
            program = _search(name, path)
            if program.startswith("/"):
                self._found[name, path] = program
        return program


def _search(name: str, path: str) -> str:
    denied = ""
    for folder in path.split(os.pathsep):
        candidate = f"{folder or '.'}/{name}"
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            denied = denied or candidate
    if denied:
        raise StartFailed(NOT_EXECUTABLE, f"program {name!r} is not executable: {denied}")
    raise StartFailed(NOT_FOUND, f"program {name!r} not found on this worker's PATH")


Descriptors = tuple[tuple[int, int], ...]
"""Ours, and the number under which the child gets it."""


def spawn(
    program: str,
    argv: list[str],
    env: dict[str, str],
    log: str,
    given: Descriptors = (),
    user: Identity | None = None,
    *,
    beside: bool = False,
) -> int:
    """Start it in the current directory, its output appended to `log`; its pid. `beside` a task that runs: that may
    have made a pipe of its log, which would be waited for."""
    flags = _LOG_FLAGS | (os.O_NONBLOCK if beside else 0)
    try:
        if user is not None:
            return _spawn_as(user, program, argv, env, log, given, flags)
        return _spawn(program, argv, env, log, given, flags)
    except OSError as error:
        raise _failed(argv[0], program, error) from error
    except (ValueError, TypeError) as error:
        # A NUL byte, a '=' in a variable's name, half a surrogate pair: nothing a kernel takes.
        raise StartFailed(NOT_EXECUTABLE, f"program {argv[0]!r} could not be started: {error}") from error


def _spawn(program: str, argv: list[str], env: dict[str, str], log: str, given: Descriptors, flags: int) -> int:
    # Its standard input is ours: nothing.
    files = (
        (os.POSIX_SPAWN_OPEN, 1, log, flags & ~os.O_CLOEXEC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        *((os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in given),
    )
    try:
        return os.posix_spawn(program, argv, env, file_actions=files, setsid=True, setsigmask=(), setsigdef=_IGNORED)
    except NotImplementedError:
        if given:
            raise StartFailed(NOT_EXECUTABLE, "this system cannot hand a descriptor to a process") from None
        return _spawn_by_fork(program, argv, env, log, flags)


def _spawn_by_fork(program: str, argv: list[str], env: dict[str, str], log: str, flags: int) -> int:
    """Where posix_spawn cannot make a session."""
    return _fork(program, argv, env, os.open(log, flags, 0o600))


def _spawn_as(
    user: Identity, program: str, argv: list[str], env: dict[str, str], log: str, given: Descriptors, flags: int
) -> int:
    """As somebody else, with that one group and no other, and without capabilities: posix_spawn cannot do that.

    The rights are given up by the child, between its fork and its start: were it done here for a moment, whoever it is
    done for could kill this process meanwhile.
    """
    if any(ours != theirs for ours, theirs in given):
        raise ValueError("a descriptor keeps its number where a process is started as somebody else")
    with acting_as(user):
        output = os.open(log, flags | os.O_NOFOLLOW, 0o600)
    return _fork(program, argv, env, output, tuple(ours for ours, _ in given), user)


def _fork(
    program: str,
    argv: list[str],
    env: dict[str, str],
    output: int,
    kept: tuple[int, ...] = (),
    user: Identity | None = None,
) -> int:
    import subprocess

    uid, gid = user or (None, None)
    groups: list[int] | None = None if user is None else []
    try:
        child = subprocess.Popen(
            argv, executable=program, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=kept,
            start_new_session=True, restore_signals=True, user=uid, group=gid, extra_groups=groups,
        )  # fmt: skip
    finally:
        os.close(output)
    child.returncode = 0  # we wait for it ourselves; without this the object would try to, when it is collected
    return child.pid


def _failed(name: str, program: str, error: OSError) -> StartFailed:
    if error.errno == errno.ENOENT and not os.path.exists(program):
        return StartFailed(NOT_FOUND, f"program {name!r} not found on this worker")
    if error.errno == errno.ENOENT:
        return StartFailed(NOT_FOUND, f"program {name!r} names an interpreter that is not on this worker")
    return StartFailed(NOT_EXECUTABLE, f"program {name!r} could not be started: {error.strerror}")
