"""`ostler exec`: a command, or a shell, beside a task that runs."""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ostler.cli import exits, follow
from ostler.cli.options import Access
from ostler.cli.render.terminal import is_terminal, note
from ostler.cli.session import connect
from ostler.domain import states
from ostler.domain.errors import BadInput

if TYPE_CHECKING:
    from ostler.client.beside import Beside
    from ostler.client.http import Hub

PIECE = 16 * 1024
STILL_HERE_S = 20.0
"""How often the hub is told that somebody is still there, who has nothing to say."""
TOLD_S = 5.0
"""The end of a task is told a little later than it is seen by what ran beside it."""
ESCAPE = b"~."
"""At the beginning of a line: leave, whatever the command does."""


def execute(
    job: Annotated[
        str, typer.Argument(metavar="ID", help="A job that runs: its id, the beginning of it, its name; or NAME.3.")
    ],
    access: Access,
    command: Annotated[list[str] | None, typer.Argument(metavar="[CMD]...", help="A shell if not given.")] = None,
    tty: Annotated[
        bool | None,
        typer.Option("--tty/--no-tty", "-t/-T", help="With a terminal, or with pipes.", show_default="as yours is"),
    ] = None,
) -> int:
    """Run a command or a shell beside a task that runs.

    ostler exec train -- nvidia-smi

    It has the task's folder, environment, devices and user, counts as part of it, and ends with it. The exit code is
    the command's. In a terminal, `~.` at the beginning of a line leaves it.
    """
    try:
        import termios  # noqa: F401
    except ImportError:
        raise BadInput("ostler exec needs a system with Unix terminals") from None
    wanted = (is_terminal(sys.stdin) and is_terminal(sys.stdout)) if tty is None else tty
    argv = list(command or [])
    if argv[:1] == ["--"]:
        del argv[0]
    with connect(access) as hub:
        return _attend(hub, job, argv, wanted)


def _attend(hub: "Hub", job: str, argv: list[str], with_terminal: bool) -> int:
    from ostler.client.beside import Beside, Broken, Terminal

    size = _size()
    terminal = Terminal(size.lines, size.columns, os.environ.get("TERM", "")) if with_terminal else None
    left = threading.Event()
    with Beside(hub, job, argv, terminal) as beside:
        try:
            with _raw(with_terminal), _sizes(beside, with_terminal), _interrupts(beside, with_terminal):
                threading.Thread(target=_feed, args=(beside, with_terminal, left), name="stdin", daemon=True).start()
                _show(beside)
        except Broken as error:
            if left.is_set():
                print("\nleft; the task goes on", file=sys.stderr, flush=True)
                return exits.FAILED
            return _told_how_it_ended(hub, beside.task_id, str(error))
    return beside.exit_code if beside.exit_code is not None else exits.FAILED


def _size() -> os.terminal_size:
    """That of the terminal itself: what LINES and COLUMNS say may have been true of another."""
    for stream in (sys.stdin, sys.stdout):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # one that was closed before is None
            return os.get_terminal_size(stream.fileno())
    return os.terminal_size((80, 24))


def _show(beside: "Beside") -> None:
    from ostler.wire.beside import ERROR

    for kind, data in beside.said():
        stream = sys.stderr.buffer if kind == ERROR else sys.stdout.buffer
        stream.write(data)
        stream.flush()


def _told_how_it_ended(hub: "Hub", task_id: str, what: str) -> int:
    job = hub.job(task_id, wait=TOLD_S)
    if job["state"] in states.TERMINAL:
        exits.complain(f"the task has ended, and the command with it: {follow.told_end(job)}")
    elif job["state"] != states.RUNNING:
        exits.complain(f"the task is {job['state']}, so the command has ended")
    else:
        exits.complain(f"{what}; the task goes on")
    return exits.FAILED


def _feed(beside: "Beside", with_terminal: bool, left: threading.Event) -> None:
    """Standard input, to the command. For as long as this process lives, or until somebody leaves by the keys."""
    open_ = sys.stdin is not None
    descriptor, line_begins = sys.stdin.fileno() if open_ else -1, True
    if not open_:
        beside.end_input()
    while True:
        ready = select.select([descriptor] if open_ else [], [], [], STILL_HERE_S)[0]
        data = os.read(descriptor, PIECE) if ready else b""
        if with_terminal and line_begins and data.startswith(ESCAPE[:1]):
            data += os.read(descriptor, 1) if len(data) == 1 else b""
            if data.startswith(ESCAPE):
                left.set()
                beside.close()
                return
        if ready and not data:
            beside.end_input()
            open_ = False
            continue
        line_begins = data.endswith((b"\r", b"\n")) if data else line_begins
        beside.write(data)


@contextlib.contextmanager
def _raw(wanted: bool) -> Iterator[None]:
    """Every key goes to the command's own terminal, Ctrl-C too."""
    if not wanted or not is_terminal(sys.stdin):
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin.fileno())
    try:
        tty.setraw(sys.stdin.fileno())
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)


@contextlib.contextmanager
def _sizes(beside: "Beside", wanted: bool) -> Iterator[None]:
    """The command's terminal is as large as this one, also when that changes."""
    if not wanted:
        yield
        return

    def changed(*_: object) -> None:
        size = _size()
        # Not from here: the handler may have come in the midst of another message.
        threading.Thread(target=beside.resize, args=(size.lines, size.columns), daemon=True).start()

    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


@contextlib.contextmanager
def _interrupts(beside: "Beside", with_terminal: bool) -> Iterator[None]:
    """Without a terminal Ctrl-C comes to this process: the first is passed on, the second leaves."""
    if with_terminal:
        yield
        return
    told: list[int] = []

    def interrupted(number: int, frame: object) -> None:
        if told:
            raise KeyboardInterrupt
        told.append(number)
        note("passed on to the command; once more to leave it")
        threading.Thread(target=beside.signal, args=(number,), daemon=True).start()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
