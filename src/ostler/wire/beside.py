"""What is said between `ostler exec` and the command that it runs beside a task. Hub and worker pass it on as it is.

A frame is one byte that says what it is, four that say how long, and so many bytes. To the command come START (JSON:
`argv`, empty for a shell, and for a terminal `tty`, `rows`, `cols`, `term`), INPUT, END_OF_INPUT, RESIZE (rows and
columns) and SIGNAL (a number); from it OUTPUT, ERROR (its standard error), TAKEN (how many bytes of its input it has
read by now), EXIT (its exit code) and before that FAILED (why it could not be started). No more than WINDOW bytes of
input are sent that were not TAKEN: so a signal, and that the caller has left, comes through whatever the command does
not read. Standard library only: a task's own process imports this.
"""

import struct

START, INPUT, END_OF_INPUT, RESIZE, SIGNAL = range(5)
OUTPUT, ERROR, EXIT, FAILED, TAKEN = range(16, 21)
SIZE = struct.Struct(">HH")
NUMBER = struct.Struct(">i")
MOST_IN_A_FRAME = 1024 * 1024
WINDOW = 256 * 1024
VARIABLE = "OSTLER_BESIDE"
"""In the environment of the process that a worker has started: the key that it shows, and the socket to show it at."""
_HEAD = struct.Struct(">BI")


def frame(kind: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


class Frames:
    """What has come, one whole frame after the other."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """ValueError: this is no frame."""
        found, rest = [], self._rest + data
        while len(rest) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(rest)
            if size > MOST_IN_A_FRAME:
                raise ValueError(f"a frame of {size} bytes")
            if len(rest) < _HEAD.size + size:
                break
            found.append((kind, rest[_HEAD.size : _HEAD.size + size]))
            rest = rest[_HEAD.size + size :]
        self._rest = rest
        return found
