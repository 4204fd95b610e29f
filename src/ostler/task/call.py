"""Runs a pickled function and leaves its value, or its exception, where the worker finds it.

    python -m ostler.task.call

OSTLER_CALL names the file with the pickle, OSTLER_RESULT the one to write; exit code 0 with a value, 1 with an
exception. Of an array the task takes the element $OSTLER_INDEX. Standard library and cloudpickle only: this starts
once per task.
"""

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

Outcome = tuple[Any, ...]
"""("value", v) or ("error", the exception if it can be pickled, its traceback as text, its type's name)."""


def run(payload: bytes, index: int) -> Outcome:
    """Whatever the function does, there is an outcome; of a process that is killed there is none."""
    return outcome_of(lambda: pickle.loads(payload), index)


def outcome_of(load: Callable[[], Any], index: int) -> Outcome:
    try:
        return ("value", _call(load(), index))
    except (Exception, SystemExit) as error:
        return _error(error)


def _call(call: Any, index: int) -> Any:
    match call:
        case ("call", function, args, kwargs):
            return function(*args, **kwargs)
        case ("map", function, items):
            return function(*items[index])
    raise ValueError("the payload is neither a call nor a map: the client and the worker differ in their version")


def _error(error: BaseException) -> Outcome:
    # The first frames are our own: `run`, and `_call` where it got that far.
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    return ("error", error if _survives(error) else None, text, _type_name(error))


def _survives(error: BaseException) -> bool:
    """Many exceptions can be pickled but not loaded again: those whose arguments are not what their class takes."""
    try:
        return isinstance(pickle.loads(cloudpickle.dumps(error)), BaseException)
    except Exception:
        return False


def _type_name(error: BaseException) -> str:
    kind = type(error)
    plain = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"


PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None)})
"""Of these nothing has to be looked up: the plain pickle is the same, and ten times as fast."""


def pack(outcome: Outcome) -> tuple[Outcome, bytes]:
    """A value that cannot be pickled is an error like any other."""
    try:
        is_plain = outcome[0] == "value" and type(outcome[1]) in PLAIN
        return outcome, pickle.dumps(outcome) if is_plain else cloudpickle.dumps(outcome)
    except Exception as error:
        failed = _error(error)
        return failed, cloudpickle.dumps(failed)


def write(path: str, data: bytes) -> None:
    """Whole or not at all: the worker reads it whatever became of this process."""
    with open(path + ".part", "wb") as file:
        file.write(data)
    os.replace(path + ".part", path)


def read(path: str | bytes) -> Any:
    with open(path, "rb") as file:
        return pickle.load(file)


def perform(load: Callable[[], Any], index: int) -> tuple[int, bytes]:
    """The exit code, and what goes into the result."""
    outcome, data = pack(outcome_of(load, index))
    if outcome[0] == "value":
        return 0, data
    print(outcome[2], file=sys.stderr, end="")
    return 1, data


def main() -> int:
    path, index = os.environ["OSTLER_CALL"], int(os.environ.get("OSTLER_INDEX", "0"))
    result = os.environ["OSTLER_RESULT"]  # asked for now: the function may do to its environment what it likes
    code, data = perform(lambda: read(path), index)
    write(result, data)
    return code


if __name__ == "__main__":
    sys.exit(main())
