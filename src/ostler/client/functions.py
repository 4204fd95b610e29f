"""Functions on their way to a worker, and their values on the way back.

A payload is cloudpickle's, opened by a Python of the same minor version only: the job asks for such a worker by
label. What comes from installed packages travels by name; what comes from `__main__`, a notebook, or a module that a
fresh interpreter would not find (beside a script, in a folder of tests) travels by value, together with what it
refers to. A worker therefore needs the packages that a function imports, and none of the project's own files.
"""

import base64
import contextlib
import functools
import inspect
import pickle
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from ostler.client.errors import CannotSend, JobFailed, RemoteError, RemoteTraceback, WrongPython

COMMAND = ["{python}", "-m", "ostler.task.call"]
CALL = "ostler.call"
INLINE_BYTES = 96 * 1024
INLINE_CALLS = 8
"""A map of more calls sends its payload once, as a blob: inline it would travel with each of them."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON_LABEL = f"python = {PYTHON}"

PutBlob = Callable[[bytes], str]
_registry_lock = threading.Lock()


def call_payload(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    return _dump(("call", fn, args, dict(kwargs)), fn)


def map_payload(fn: Callable[..., Any], calls: list[tuple[Any, ...]]) -> bytes:
    """One payload for all calls of a map: each task takes its own."""
    return _dump(("map", fn, calls), fn)


def spec_of(payload: bytes, fields: Mapping[str, Any], put_blob: PutBlob) -> dict[str, Any]:
    """The spec of a job that runs this payload. A large or shared one is uploaded, and the spec names it."""
    inline = len(payload) <= INLINE_BYTES and fields.get("array", 1) <= INLINE_CALLS
    call = {"inline": base64.b64encode(payload).decode()} if inline else {"blob": put_blob(payload)}
    return {
        **fields,
        "command": COMMAND,
        "labels": [*fields.get("labels", []), PYTHON_LABEL],
        "metadata": {**fields.get("metadata", {}), CALL: call},
    }


def is_function(spec: Mapping[str, Any]) -> bool:
    return CALL in (spec.get("metadata") or {})


def name_of(fn: Callable[..., Any]) -> str:
    """A job's name where none was given."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return name.strip("<>")[:256]


class Outcome:
    """What a function's process left: a value or an exception."""

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


def open_result(data: bytes, document: Mapping[str, Any]) -> Outcome:
    """Unpickle what a job of this user left. Done in this process only; hub and workers never open anything."""
    made_by = _python_of(document.get("spec") or {})
    if made_by and made_by != PYTHON:
        raise WrongPython(
            f"the result of {document.get('id')} was made by Python {made_by} and this is {PYTHON}; "
            f"open it with Python {made_by}"
        )
    try:
        kind, *rest = pickle.loads(data)
    except (Exception, SystemExit) as error:
        raise JobFailed(
            f"the result of {document.get('id')} cannot be opened here: {type(error).__name__}: {error}", dict(document)
        ) from error
    if kind == "value":
        return Outcome(value=rest[0])
    return Outcome(error=_remote_error(*rest, document=document))


def _remote_error(
    error: BaseException | None, text: str, type_name: str = "", *, document: Mapping[str, Any]
) -> BaseException:
    where = f"in job {document.get('id')}" + (f" on {document['worker']}" if document.get("worker") else "")
    if not isinstance(error, Exception):
        # Not brought here: a SystemExit of the function must not end this process.
        last = text.strip().rpartition("\n")[2]
        error = RemoteError(f"{last or type_name} ({where})", dict(document), type_name=type_name, traceback=text)
    else:
        _set(error, "__notes__", [*getattr(error, "__notes__", ()), f"({where})"])
    _set(error, "__cause__", RemoteTraceback(text))
    return error


_set = BaseException.__setattr__
"""An exception's own may refuse, as that of a frozen dataclass does."""


def _python_of(spec: Mapping[str, Any]) -> str:
    """The Python that a spec asks for."""
    wanted = [text.partition("=") for text in spec.get("labels") or [] if isinstance(text, str)]
    return next((value.strip() for label, _, value in wanted if label.strip() == "python"), "")


# What may be passed to a function


def check_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Iterable[str]
) -> None:
    """A TypeError here rather than on the worker, for arguments that cannot be meant.

    A name that is both an option that was given and a parameter that was not could be meant either way. It is
    refused: guessing would drop an argument of the function without a word.
    """
    if not callable(fn):
        raise TypeError(f"expected a function to run, not {fn!r}; for a program there is submit_command")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # some of C's functions do not say what they take
    bound_before = set(fn.keywords) if isinstance(fn, functools.partial) else set()
    try:
        filled = set(signature.bind_partial(*args, **kwargs).arguments)
        unclear = [name for name in options if name in _named(signature) and name not in filled | bound_before]
        if not unclear:
            signature.bind(*args, **kwargs)
    except TypeError as error:
        from ostler.client.resources import OPTIONS, nearest

        unknown = [name for name in kwargs if name not in signature.parameters]
        hint = nearest(unknown[0], OPTIONS) if unknown else ""
        raise TypeError(f"{name_of(fn)}() {error}{hint if 'mean' in hint else ''}") from None
    if unclear:
        name = unclear[0]
        raise TypeError(
            f"{name!r} is an option of submit and also a parameter of {name_of(fn)}; for the function's write "
            f"functools.partial({name_of(fn)}, {name}=...), with the option beside it where that is wanted too"
        )


def _named(signature: inspect.Signature) -> set[str]:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, parameter in signature.parameters.items() if parameter.kind in by_name}


# Pickling


def _dump(payload: tuple[Any, ...], fn: Callable[..., Any]) -> bytes:
    try:
        with _own_modules_by_value():
            data: bytes = cloudpickle.dumps(payload)
    except Exception as error:
        raise CannotSend(
            f"{name_of(fn)} cannot be sent to a worker, because of what it refers to or is called with: {error}. "
            "Open files, locks and connections are made inside the function"
        ) from error
    return data


@contextlib.contextmanager
def _own_modules_by_value() -> Iterator[None]:
    """For the moment only: other users of cloudpickle in this process keep their own registrations."""
    with _registry_lock:
        before = cloudpickle.list_registry_pickle_by_value()
        own = {module.__name__: module for module in list(sys.modules.values()) if _is_own(module)}
        added = [module for name, module in own.items() if name not in before]
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in added:
                with contextlib.suppress(ValueError):  # somebody else has undone it meanwhile
                    cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: ModuleType | None) -> bool:
    """Not installed: loaded from a file that a fresh interpreter elsewhere would not look for."""
    name = getattr(module, "__name__", None)
    if not isinstance(name, str) or sys.modules.get(name) is not module:
        return False
    if name.partition(".")[0] in ("__main__", "ostler", "cloudpickle"):
        return False  # the first always goes by value, and whoever runs a task has the others
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not _is_installed(file)


@functools.cache
def _is_installed(file: str) -> bool:
    return any(Path(file).resolve().is_relative_to(root) for root in _installed_roots())


@functools.cache
def _installed_roots() -> tuple[Path, ...]:
    """Where a fresh interpreter finds modules, whatever the folder it starts in: and what .pth files lead to."""
    packages = [Path(path) for path in [*site.getsitepackages(), site.getusersitepackages()]]
    listed = [Path(line) for folder in packages for line in _pth_lines(folder)]
    installed_into = [Path(path) for path in sys.path if path and next(Path(path).glob("*.dist-info"), None)]
    library = [Path(path) for name, path in sysconfig.get_paths().items() if "lib" in name]
    system = Path(sys.base_prefix) / "lib"
    return tuple({path.resolve() for path in [*packages, *listed, *installed_into, *library, system] if path.is_dir()})


def _pth_lines(folder: Path) -> list[str]:
    lines: list[str] = []
    for file in folder.glob("*.pth"):
        try:
            lines += [line.strip() for line in file.read_text().splitlines()]
        except (OSError, UnicodeDecodeError):
            continue
    return [line for line in lines if line.startswith("/")]
