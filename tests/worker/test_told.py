"""What is read of a task that has ended: its numbers, and its last words."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ostler.runtime.attempts import LOG, open_plain
from ostler.worker.launching import FACTS_FILE, read_facts
from ostler.worker.outcomes import ERROR_FILE, SAID_BYTES, _said
from ostler.worker.redaction import Redactor
from ostler.worker.told import LOG_BYTES, MAX_LINE_CHARACTERS, MAX_NAMES, last_line, read_told


def attempt(folder: Path, log: bytes = b"", metrics: bytes | None = None) -> Path:
    (folder / "out").mkdir()
    (folder / "log").write_bytes(log)
    if metrics is not None:
        (folder / "out" / "metrics.jsonl").write_bytes(metrics)
    return folder


def lines(*documents: object) -> bytes:
    return "".join(f"{json.dumps(one)}\n" for one in documents).encode()


def test_the_last_value_of_each_number_counts(tmp_path: Path) -> None:
    written = lines({"loss": 2, "step": 1}, {"loss": 0.5, "note": "x", "done": True}, {"lr": None})
    assert read_told(attempt(tmp_path, metrics=written)).metrics == {"loss": 0.5, "step": 1.0}


def test_what_is_in_the_file_wins_over_what_was_printed(tmp_path: Path) -> None:
    printed = b"begin\n" + lines({"loss": 9.0, "acc": 0.5}) + b'  {"indented": 1}\n{"cut": '
    told = read_told(attempt(tmp_path, printed, lines({"loss": 0.25})))
    assert told.metrics == {"loss": 0.25, "acc": 0.5}


@pytest.mark.parametrize(
    "line",
    [b"NaN", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": [1]}', b'{"a": "1"}', b"[1]", b"{", b"\xff"],
)
def test_a_value_that_is_no_finite_number_leaves_the_last_one_that_was(tmp_path: Path, line: bytes) -> None:
    told = read_told(attempt(tmp_path, metrics=lines({"a": 1.5, "b": 2}) + line + b"\n"))
    assert told.metrics == {"a": 1.5, "b": 2.0}


@pytest.mark.parametrize(
    "line", [b'{"b": NaN, "a": 3}', b'{"a": 3, "big": 1' + b"0" * 400 + b"}"], ids=["not a number", "too large"]
)
def test_a_value_that_is_no_finite_number_does_not_take_its_neighbours_along(tmp_path: Path, line: bytes) -> None:
    assert read_told(attempt(tmp_path, metrics=line)).metrics == {"a": 3.0}


def test_names_are_few_and_short(tmp_path: Path) -> None:
    many = {f"n{n}": n for n in range(MAX_NAMES + 10)}
    told = read_told(attempt(tmp_path, lines({"printed": 1}), lines({"x" * 129: 1, "": 1}, many, {"n0": 7})))
    assert len(told.metrics) == MAX_NAMES
    assert told.metrics["n0"] == 7.0
    assert "printed" not in told.metrics


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = lines({"early": 1}) + b"x" * 80 + b"\n" * LOG_BYTES + lines({"late": 2})
    assert read_told(attempt(tmp_path, log)).metrics == {"late": 2.0}


def test_a_pipe_in_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(attempt(tmp_path) / "out" / "metrics.jsonl")
    assert read_told(tmp_path).metrics == {}


def test_an_attempt_without_files_has_told_nothing(tmp_path: Path) -> None:
    told = read_told(tmp_path)
    assert (told.metrics, told.last_line) == ({}, "")


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (b"", ""),
        (b"\n \n\t\n", ""),
        (b"one\ntwo\n\n  \n", "two"),
        (b"no newline", "no newline"),
        (b"\x1b[31mred\x1b[0m\x07 alert\n", "red alert"),
        (b"\x1b]0;title\x07said\n", "said"),
        (b"10%\r50%\r100% done\r\n", "100% done"),
        (b"a\tb\x00c\n", "a bc"),
        ("größer \u202e als\n".encode(), "größer  als"),
        (b"bad \xff byte\n", "bad \ufffd byte"),
        (b"x" * 1000, "x" * MAX_LINE_CHARACTERS),
    ],
)
def test_the_last_line_is_what_a_person_would_have_seen(log: bytes, line: str) -> None:
    assert last_line(log) == line


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_plain_file_is_an_error_at_once_and_keeps_nothing_open(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    for name in (ERROR_FILE, FACTS_FILE, LOG):
        make(tmp_path / name)
    for read in (lambda: _said(tmp_path, Redactor(())), lambda: read_facts(tmp_path), lambda: read_told(tmp_path)):
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(60)
        assert not reader.is_alive(), "it waits for a pipe"
    before = os.listdir("/dev/fd")
    with pytest.raises(OSError, match="not a plain file"):
        open_plain(tmp_path / LOG)
    assert os.listdir("/dev/fd") == before


def test_a_secret_that_is_cut_off_is_covered_to_where_it_is_cut(tmp_path: Path) -> None:
    secret = b"a-secret-of-some-length"
    redactor = Redactor([secret])
    shown = b"x" * (MAX_LINE_CHARACTERS - 8)
    told = read_told(attempt(tmp_path, shown + secret), redactor.covered)
    assert told.last_line == shown.decode() + "*" * 8
    before = b"y" * (SAID_BYTES - 8)
    (tmp_path / ERROR_FILE).write_bytes(before + secret)
    assert _said(tmp_path, redactor) == before.decode() + "*" * 8
