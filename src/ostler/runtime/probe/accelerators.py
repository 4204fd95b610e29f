"""The search for accelerators: every probe in a process of its own, all at once; the first with a device wins."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from ostler.runtime.probe import isolated
from ostler.runtime.probe.found import Found

ORDER = ("nvidia", "rocm", "metal", "vulkan")

Command = Callable[[str], Sequence[str]]


class Accelerators(msgspec.Struct, kw_only=True):
    backend: str = "cpu"
    found: Found
    notes: list[str]


def find(timeout_s: float, backends: Sequence[str] | None = None, command: Command | None = None) -> Accelerators:
    """
    All probes start together and share one deadline, so that one that hangs leaves time to the others.
    Those behind the winner are stopped: they could only find the same device again.
    """
    deadline = time.monotonic() + timeout_s
    command = command or _command
    notes: list[str] = []
    with ExitStack() as stack:
        running = [
            (backend, stack.enter_context(isolated.Isolated(command(backend), env=_environment())))
            for backend in (worth_trying() if backends is None else backends)
        ]
        for backend, process in running:
            found = _understood(backend, process.finish(deadline))
            notes += found.notes
            if found.devices:
                return Accelerators(backend=backend, found=found, notes=notes)
    return Accelerators(found=Found(), notes=notes)


def worth_trying() -> list[str]:
    """NVIDIA's driver shows itself in too many ways to tell from outside; the others leave a sure sign."""
    if sys.platform == "darwin":
        return ["metal"]
    signs = {
        "nvidia": True,
        "rocm": Path("/sys/module/amdgpu").exists(),
        "vulkan": shutil.which("vulkaninfo") is not None,
    }
    return [backend for backend in ORDER if signs.get(backend)]


def _understood(backend: str, outcome: isolated.Outcome) -> Found:
    if outcome.failure:
        return Found(notes=[f"{backend}: the probe {outcome.failure}"])
    # Drivers print to standard output as they please; the document is the last line.
    lines = outcome.stdout.strip().splitlines()
    try:
        return msgspec.json.decode(lines[-1], type=Found)
    except (IndexError, msgspec.DecodeError) as error:
        return Found(notes=[f"{backend}: the probe's answer cannot be read: {error}"])


def _command(backend: str) -> Sequence[str]:
    # -P: a file in the working directory must not pass for a library.
    return [sys.executable, "-P", "-m", "ostler.runtime.probe", backend]


def _environment() -> dict[str, str]:
    """With the same ostler as here on the path, also when it runs from a checkout."""
    home = str(Path(__file__).resolve().parents[3])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([home, path] if path else [home])}
