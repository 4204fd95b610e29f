"""Payloads on their way out, results on their way back, and arguments that could be meant either way."""

import base64
import dataclasses
import functools
import hashlib
import importlib.util
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from ostler.client import functions
from ostler.client.errors import CannotSend, JobFailed, RemoteError, WrongPython

OPENER = "import pickle, sys; kind, fn, args, kwargs = pickle.load(sys.stdin.buffer); print(fn(*args, **kwargs))"


def run_elsewhere(payload: bytes, folder: Path) -> str:
    """Call it in a fresh interpreter that starts in another folder, as a worker's task does."""
    done = subprocess.run([sys.executable, "-c", OPENER], input=payload, capture_output=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def load_module(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def no_blobs(_: bytes) -> str:
    raise AssertionError("a small payload needs no blob")


def test_a_function_of_a_module_that_is_not_installed_runs_where_that_module_is_not(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    helper, main = tmp_path / "own" / "own_helper.py", tmp_path / "own" / "own_main.py"
    helper.write_text("FACTOR = 7\nclass Box:\n    def __init__(self, x): self.x = x * FACTOR\n")
    main.write_text("import os\nimport own_helper\nfrom own_helper import Box\ndef double(x):\n"
                    "    return os.path.join('a', str(Box(x).x + own_helper.FACTOR))\n")  # fmt: skip
    try:
        load_module(helper, "own_helper")
        module = load_module(main, "own_main")
        payload = functions.call_payload(module.double, (3,), {})
        assert run_elsewhere(payload, tmp_path) == os.path.join("a", "28")
    finally:
        sys.modules.pop("own_helper", None)
        sys.modules.pop("own_main", None)


def test_what_is_installed_travels_by_name() -> None:
    payload = functions.call_payload(os.path.join, ("a", "b"), {})
    assert b"posixpath" in payload
    assert len(payload) < 200


def test_cloudpickle_is_left_as_it_was_found() -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    functions.call_payload(run_elsewhere, (), {})
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_a_module_that_is_known_by_two_names_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "the_old_name_of_this", sys.modules[__name__])
    before = cloudpickle.list_registry_pickle_by_value()
    functions.call_payload(run_elsewhere, (), {})
    assert cloudpickle.list_registry_pickle_by_value() == before


class Unregisters:
    def __reduce__(self) -> tuple[Any, ...]:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        return int, ()


def test_whoever_else_changes_what_cloudpickle_knows_does_not_break_a_submit() -> None:
    assert functions.call_payload(print, (Unregisters(),), {})


def test_a_closure_and_a_lambda_can_be_sent(tmp_path: Path) -> None:
    factor = 6
    assert run_elsewhere(functions.call_payload(lambda x, *, y: x * y * factor, (7,), {"y": 2}), tmp_path) == "84"


def test_what_cannot_be_sent_is_said_before_anything_is_submitted() -> None:
    lock = threading.Lock()

    def holder() -> bool:
        return lock.locked()

    with pytest.raises(CannotSend, match=r"holder cannot be sent to a worker.*lock.*inside the function") as caught:
        functions.call_payload(holder, (), {})
    assert isinstance(caught.value, TypeError)


def test_a_small_payload_is_in_the_spec_and_the_worker_must_have_the_same_python() -> None:
    spec = functions.spec_of(b"x" * functions.INLINE_BYTES, {"name": "n", "labels": ["zone = eu"]}, no_blobs)
    assert spec["command"] == ["{python}", "-m", "ostler.task.call"]
    assert spec["labels"] == ["zone = eu", f"python = {sys.version_info.major}.{sys.version_info.minor}"]
    assert base64.b64decode(spec["metadata"]["ostler.call"]["inline"]) == b"x" * functions.INLINE_BYTES


def test_a_large_payload_is_a_blob_and_metadata_stays() -> None:
    sent: list[bytes] = []

    def put(data: bytes) -> str:
        sent.append(data)
        return hashlib.sha256(data).hexdigest()

    payload = b"x" * (functions.INLINE_BYTES + 1)
    spec = functions.spec_of(payload, {"metadata": {"note": 1}}, put)
    assert sent == [payload]
    assert spec["metadata"] == {"note": 1, "ostler.call": {"blob": hashlib.sha256(payload).hexdigest()}}


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (run_elsewhere, "run_elsewhere"),
        (lambda: 0, "lambda"),
        (functools.partial(os.path.join, "a"), "join"),
        (int, "int"),
    ],
)
def test_a_job_is_named_after_its_function(fn: Any, name: str) -> None:
    assert functions.name_of(fn) == name


# Results

HERE = {"id": "j1", "worker": "w1", "spec": {"labels": [functions.PYTHON_LABEL]}}


def test_a_value_comes_back() -> None:
    assert functions.open_result(pickle.dumps(("value", {"a": 1})), HERE).get() == {"a": 1}


def test_an_exception_comes_back_as_itself_with_the_remote_traceback_as_its_cause() -> None:
    outcome = functions.open_result(pickle.dumps(("error", KeyError("k"), "Traceback: there", "KeyError")), HERE)
    with pytest.raises(KeyError, match="k") as caught:
        outcome.get()
    assert "Traceback: there" in str(caught.value.__cause__)
    assert caught.value.__notes__ == ["(in job j1 on w1)"]


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen(Exception):
    code: int


def test_an_exception_that_takes_no_attributes_comes_back_as_itself_all_the_same() -> None:
    outcome = functions.open_result(pickle.dumps(("error", Frozen(7), "Traceback: there", "Frozen")), HERE)
    with pytest.raises(Frozen) as caught:
        outcome.get()
    assert caught.value.code == 7
    assert "Traceback: there" in str(caught.value.__cause__)
    assert caught.value.__notes__ == ["(in job j1 on w1)"]


def test_an_exception_that_could_not_be_pickled_comes_back_as_text() -> None:
    text = "Traceback (most recent call last):\n  there\nodd.Error: broken\n"
    error = functions.open_result(pickle.dumps(("error", None, text, "odd.Error")), HERE).error
    assert isinstance(error, RemoteError)
    assert isinstance(error, JobFailed)
    assert str(error) == "odd.Error: broken (in job j1 on w1)"
    assert (error.type_name, error.traceback) == ("odd.Error", text)


def test_an_exit_of_the_function_does_not_end_the_client() -> None:
    error = functions.open_result(pickle.dumps(("error", SystemExit(3), "SystemExit: 3", "SystemExit")), HERE).error
    assert isinstance(error, RemoteError)


def test_a_result_of_another_python_is_not_opened() -> None:
    document = {"id": "j1", "spec": {"labels": ["zone = eu", "python = 2.7"]}}
    with pytest.raises(WrongPython, match=r"made by Python 2\.7 and this is 3\.\d+; open it with Python 2\.7"):
        functions.open_result(b"never looked at", document)


def test_a_result_that_cannot_be_opened_says_so() -> None:
    with pytest.raises(JobFailed, match="the result of j1 cannot be opened here"):
        functions.open_result(b"garbage", HERE)


# Options and arguments


def train(data: Any, epochs: int = 1, name: str = "none") -> str:
    return f"{data} {epochs} {name}"


def anything(**kwargs: Any) -> dict[str, Any]:
    return kwargs


def test_an_option_that_is_also_a_parameter_is_refused_rather_than_guessed() -> None:
    with pytest.raises(
        TypeError, match=r"'name' is an option of submit and also a parameter.*functools\.partial\(train, name="
    ):
        functions.check_call(train, ("data",), {}, ["name"])


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "options"),
    [
        (train, ("data",), {"epochs": 3}, ["resources"]),
        (train, ("data", 3, "filled"), {}, ["name"]),
        (functools.partial(train, name="bound"), ("data",), {}, ["name"]),
        (anything, (), {"epochs": 3}, ["name"]),
        (int, ("3",), {}, ["name"]),
        (dict, (), {"anything": 1}, ["name"]),
    ],
)
def test_a_call_that_is_clear_is_let_through(fn: Any, args: tuple[Any, ...], kwargs: Any, options: list[str]) -> None:
    functions.check_call(fn, args, kwargs, options)


def test_a_mistyped_option_is_told_the_right_one() -> None:
    with pytest.raises(TypeError, match=r"train\(\).*'resource'; did you mean 'resources'"):
        functions.check_call(train, ("data",), {"resource": {}}, [])


def test_a_missing_argument_is_said_here() -> None:
    with pytest.raises(TypeError, match=r"train\(\) missing a required argument: 'data'"):
        functions.check_call(train, (), {}, [])


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="submit_command"):
        functions.check_call("python train.py", (), {}, [])  # type: ignore[arg-type]
