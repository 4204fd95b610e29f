"""The chunk that has begun and not ended, of an answer that is passed on as it comes."""

from typing import NamedTuple

MAX_FILL_BYTES = 64 * 1024
"""What is left of a chunk or a body, up to this much, is filled with empty lines."""
END = b"\r\n"


class OpenChunk(NamedTuple):
    line: bytes
    """What has come of the line that says its size."""
    left: int = 0
    """What has not come of its data and its end, once that line is whole."""

    def rest(self) -> bytes | None:
        """What ends it, in lines that mean nothing in an event stream; None: that is too much, or unknown."""
        is_whole = self.line.endswith(END)
        size = 0 if b";" in self.line and not is_whole else size_in(self.line)
        left = self.left if is_whole else size + len(END)
        if not size or left > MAX_FILL_BYTES:
            return None
        line_end = b"" if is_whole else b"\n" if self.line.endswith(b"\r") else END
        return line_end + (b"\n" * (left - len(END)) + END if left >= len(END) else b"\n")


def size_in(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0].strip(), 16)
    except ValueError:
        return 0


def open_chunk(before: OpenChunk | None, data: bytes) -> OpenChunk | None:
    """The chunk that is open after this piece of a body that a parser has taken; `before`: the one before it."""
    at = 0
    if before is not None and before.line.endswith(END):
        if len(data) < before.left:
            return OpenChunk(before.line, before.left - len(data))
        at = before.left
    elif before is not None:
        data = before.line + data
    while at < len(data):
        end = data.find(END, at) + len(END)
        if end < len(END):
            return OpenChunk(data[at:])
        line = data[at:end]
        at = end + size_in(line) + len(END)
        if at > len(data):
            return OpenChunk(line, at - len(data))
    return None
