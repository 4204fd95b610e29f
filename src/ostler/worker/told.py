"""What an ended task has told about itself: the numbers that it wrote or printed, and the last thing that it said."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ostler.runtime.attempts import LOG, OUT, open_plain
from ostler.runtime.identity import as_owner

METRICS = "metrics.jsonl"
METRICS_BYTES = 16 * 1024 * 1024
LOG_BYTES = 256 * 1024
TAIL_BYTES = 16 * 1024
SHORT_BYTES = 16 * 1024
LINE_BYTES = 64 * 1024
MAX_NAMES, MAX_NAME_CHARACTERS = 64, 128
MAX_LINE_CHARACTERS = 300
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)")


class Told(msgspec.Struct, kw_only=True):
    metrics: dict[str, float] = {}
    last_line: str = ""
    log: bytes = b""
    """Its end."""


def is_short(folder: Path) -> bool:
    """Whether all that there is to read is read in no time."""
    return _size(f"{folder}/{LOG}") + _size(f"{folder}/{OUT}/{METRICS}") <= SHORT_BYTES


def read_told(folder: Path, covered: Callable[[bytes], bytes] = bytes) -> Told:
    """Of the attempt in this folder. What the task wrote into its file of metrics comes before what it printed, of
    which nobody sees more than is left when it was `covered`: half of a secret, cut off, would not be known for one."""
    with as_owner(folder):
        log = covered(_tail(folder / LOG, LOG_BYTES))
        written = _tail(folder / OUT / METRICS, METRICS_BYTES)
    metrics = _last_values(written.split(b"\n"))
    printed = _last_values(line for line in log.split(b"\n") if line.startswith(b"{"))
    for name, value in printed.items():
        if len(metrics) < MAX_NAMES:
            metrics.setdefault(name, value)
    return Told(metrics=metrics, last_line=last_line(log), log=log[-TAIL_BYTES:])


def _last_values(lines: Iterable[bytes]) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in lines:
        for name, value in _numbers(line).items() if len(line) <= LINE_BYTES else ():
            if name in found or (len(found) < MAX_NAMES and 0 < len(name) <= MAX_NAME_CHARACTERS):
                found[name] = value
    return found


def _numbers(line: bytes) -> dict[str, float]:
    """Those that are finite, of a line that is a JSON object."""
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(line) if line.lstrip().startswith(b"{") else {}
        return {
            name: float(one)
            for name, one in document.items()
            if type(one) in (int, float) and abs(one) <= sys.float_info.max
        }
    return {}


def _tail(path: Path, size: int) -> bytes:
    """The end of a file. What the task made by that name may be anything: a pipe is not waited for."""
    with contextlib.suppress(OSError), open_plain(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)
    return b""


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def last_line(log: bytes) -> str:
    """The last that is not empty, as a person would have seen it: without colours, and after the last overwriting."""
    end = len(log)
    while end > 0:
        begin = max(log.rfind(b"\n", 0, end), log.rfind(b"\r", 0, end)) + 1
        shown = _ESCAPES.sub("", log[begin:end][:LINE_BYTES].decode(errors="replace"))
        text = "".join(one for one in shown.replace("\t", " ") if one.isprintable()).strip()
        if text:
            return text[:MAX_LINE_CHARACTERS]
        end = begin - 1
    return ""
