"""A command beside a task that runs, as one connection: bytes to it, and from it until its exit code."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from ostler.client.errors import BadInput, OstlerError, from_problem
from ostler.client.http import Hub
from ostler.domain.errors import NotRunning
from ostler.wire.beside import (
    END_OF_INPUT,
    ERROR,
    EXIT,
    FAILED,
    INPUT,
    NUMBER,
    OUTPUT,
    RESIZE,
    SIGNAL,
    SIZE,
    TAKEN,
    WINDOW,
    Frames,
    frame,
)

OPENS_S = 10.0
PIECE = 64 * 1024
STILL_HERE_S = 20.0
"""How often the hub is told that somebody is still there, who may send nothing."""
TROUBLES = 4000
"""From this close code on the hub says what was wrong, and in which words."""
BAD = 4422
NOT_RUNNING = 503


class Broken(OstlerError):
    """The connection to the command ended before the command did: the caller looks at the job."""

    title = "broken off"


class Terminal(msgspec.Struct, frozen=True):
    """What the command shall find in place of pipes."""

    rows: int
    columns: int
    term: str = ""


class Beside:
    """Safe to be written to by one thread and read by another."""

    def __init__(self, hub: Hub, job_id: str, argv: Sequence[str] = (), terminal: Terminal | None = None) -> None:
        """Without `argv` a shell. NotRunning where there is no task to run it beside."""
        wanted: dict[str, object] = {"argv": list(argv)}
        if terminal is not None:
            wanted |= {"tty": True, "rows": terminal.rows, "cols": terminal.columns, "term": terminal.term}
        try:
            said = msgspec.json.encode(wanted).decode()
        except UnicodeEncodeError:
            raise BadInput("the command has bytes that are no text; give it as UTF-8") from None
        job = hub.job(job_id)  # by way of whichever hub leads, which is then talked to
        self.task_id = str(job["id"])
        self._open = contextlib.ExitStack()
        self._socket = _opened(self._open, hub, f"/v1/jobs/{self.task_id}/exec")
        self._socket.send(said)
        self.exit_code: int | None = None
        self._untaken, self._is_over = 0, False
        self._changed = threading.Condition()

    def said(self) -> Iterator[tuple[int, bytes]]:
        """OUTPUT or ERROR, and its bytes, until the command has ended and `exit_code` is known. Broken where that is
        not how it ended."""
        try:
            yield from self._told()
        except ConnectionClosed as error:
            raise _end(error) from None
        finally:
            self._note(over=True)
        if self.exit_code is None:
            raise Broken("the connection ended before the command did")

    def _told(self) -> Iterator[tuple[int, bytes]]:
        frames = Frames()
        for message in self._socket:
            for kind, payload in frames.feed(message.encode() if isinstance(message, str) else message):
                if kind in (OUTPUT, ERROR):
                    yield kind, payload
                elif kind == FAILED:
                    yield ERROR, b"ostler: " + payload + b"\n"
                elif kind == TAKEN:
                    self._note(taken=NUMBER.unpack(payload)[0])
                elif kind == EXIT:
                    self.exit_code = NUMBER.unpack(payload)[0]
                    return

    def _note(self, *, taken: int = 0, over: bool = False) -> None:
        with self._changed:
            self._untaken -= taken
            self._is_over |= over
            self._changed.notify_all()

    def write(self, data: bytes) -> None:
        """Waits while the command has much to read; that it has read, whoever reads `said` hears."""
        for start in range(0, max(1, len(data)), PIECE):
            piece = data[start : start + PIECE]
            with self._changed:
                while self._untaken + len(piece) > WINDOW and not self._is_over:
                    if not self._changed.wait(STILL_HERE_S):
                        self._send(frame(INPUT))
                self._untaken += len(piece)
            self._send(frame(INPUT, piece))

    def end_input(self) -> None:
        self._send(frame(END_OF_INPUT))

    def resize(self, rows: int, columns: int) -> None:
        self._send(frame(RESIZE, SIZE.pack(rows, columns)))

    def signal(self, number: int) -> None:
        self._send(frame(SIGNAL, NUMBER.pack(number)))

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionClosed, OSError):  # whoever reads is told how it ended
            self._socket.send(data)

    def close(self) -> None:
        """The command ends, if it has not."""
        self._open.close()

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(stack: contextlib.ExitStack, hub: Hub, path: str) -> ClientConnection:
    """Closed with the stack."""
    headers, trust = hub.credentials()
    url = "ws" + hub.address.removeprefix("http") + path
    try:
        connection = connect(
            url,
            additional_headers=headers,
            ssl=trust.context if url.startswith("wss:") else None,
            open_timeout=OPENS_S,
            compression=None,
            max_size=None,
            proxy=None,
        )
        return stack.enter_context(connection)
    except InvalidStatus as error:
        answer, body = error.response, bytes(error.response.body or b"")
        refused = from_problem(answer.status_code, body, f"GET {hub.address}{path}")
        raise NotRunning(_detail(body)) if answer.status_code == NOT_RUNNING else refused from None
    except (InvalidHandshake, OSError) as error:
        raise hub.unreachable(error) from error


def _detail(body: bytes) -> str:
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(body)
        if isinstance(found, dict) and found.get("detail"):
            return str(found["detail"])
    return "the hub cannot do this now; ask again"


def _end(error: ConnectionClosed) -> OstlerError:
    code, reason = (error.rcvd.code, error.rcvd.reason) if error.rcvd is not None else (0, "")
    if code == BAD:
        return BadInput(reason)
    if code >= TROUBLES:
        return NotRunning(reason)
    return Broken("the connection ended before the command did" + (f": {reason}" if reason else ""))
