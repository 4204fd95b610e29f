"""A function in a process of its own, as a worker starts it."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest


def call(tmp_path: Path, payload: Any, index: int | None = None) -> tuple[int, Any, str]:
    (tmp_path / "call.pkl").write_bytes(cloudpickle.dumps(payload))
    env = {
        **os.environ,
        "OSTLER_CALL": str(tmp_path / "call.pkl"),
        "OSTLER_RESULT": str(tmp_path / "result.pkl"),
        **({} if index is None else {"OSTLER_INDEX": str(index)}),
    }
    done = subprocess.run(
        [sys.executable, "-m", "ostler.task.call"], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    result = pickle.loads((tmp_path / "result.pkl").read_bytes())
    return done.returncode, result, done.stderr


class Picky(Exception):
    """Can be pickled, but not loaded again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


# Sent by value, as functions of a notebook are: the task's process cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_a_call_leaves_its_value(tmp_path: Path) -> None:
    code, result, _ = call(tmp_path, ("call", lambda a, b: a * b, (6,), {"b": 7}))
    assert (code, result) == (0, ("value", 42))


def test_a_task_of_a_map_takes_the_element_of_its_index(tmp_path: Path) -> None:
    code, result, _ = call(tmp_path, ("map", lambda a, b: a + b, [(1, 2), (3, 4), (5, 6)]), index=1)
    assert (code, result) == (0, ("value", 7))


def test_an_exception_comes_with_its_traceback_and_is_printed_too(tmp_path: Path) -> None:
    def fails() -> None:
        raise KeyError("nope")

    code, (kind, error, text, name), printed = call(tmp_path, ("call", fails, (), {}))
    assert (code, kind, name) == (1, "error", "KeyError")
    assert isinstance(error, KeyError)
    assert error.args == ("nope",)
    assert "in fails" in text
    assert "ostler/task" not in text
    assert printed == text


def test_an_exception_that_does_not_survive_pickling_is_told_in_words(tmp_path: Path) -> None:
    def fails() -> None:
        raise Picky(1, 2)

    code, (_, error, text, name), _ = call(tmp_path, ("call", fails, (), {}))
    assert (code, error) == (1, None)
    assert name.endswith("Picky")
    assert "1 and 2" in text


def test_a_value_that_cannot_be_pickled_is_an_error(tmp_path: Path) -> None:
    code, (kind, _, text, _), _ = call(tmp_path, ("call", lambda: (n for n in range(3)), (), {}))
    assert (code, kind) == (1, "error")
    assert "generator" in text


def test_a_function_that_exits_is_an_error_and_not_a_silent_success(tmp_path: Path) -> None:
    code, (kind, _, _, name), _ = call(tmp_path, ("call", sys.exit, (0,), {}))
    assert (code, kind, name) == (1, "error", "SystemExit")


@pytest.mark.parametrize("payload", [("call",), ["x"], 5])
def test_a_payload_of_another_version_is_named_as_such(tmp_path: Path, payload: Any) -> None:
    code, (kind, _, text, _), _ = call(tmp_path, payload)
    assert (code, kind) == (1, "error")
    assert "version" in text
