"""Runs a task's command between its prolog and its epilog.

    python -m ostler.task.steps '{"prolog": [...], "command": [...], "epilog": [...]}'

The prolog must succeed, or the command is not run. The epilog runs whatever happened: after a failed prolog, after a
failed command, and after SIGTERM, for as long as the grace lasts. The exit code is the command's (or the prolog's);
what went wrong beside it is said in the log and, for the worker, in the file $OSTLER_ERROR. Standard library only.
"""

import json
import os
import signal
import subprocess
import sys
from types import FrameType

ERROR_VARIABLE = "OSTLER_ERROR"


class Steps:
    def __init__(self) -> None:
        self._told_to_stop = False

    def stop(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM came to the whole group; the step that runs has it too, and to some a second one means now. What
        follows is only the epilog."""
        self._told_to_stop = True

    def run(self, prolog: list[str], command: list[str], epilog: list[str]) -> int:
        code = self._step("prolog", prolog) if prolog else 0
        if code == 0 and not self._told_to_stop:
            code = self._step("", command)
        elif code != 0:
            complain(f"the prolog failed with exit code {code}; the command was not run")
        if epilog:
            ended = self._step("epilog", epilog)
            if ended != 0:
                complain(f"the epilog failed with exit code {ended}", keep=code != 0)
                code = code or ended
        return code

    def _step(self, name: str, argv: list[str]) -> int:
        try:
            was_told = self._told_to_stop
            running = subprocess.Popen(argv)
        except OSError as error:
            complain(f"{name or 'the command'} could not be started: {argv[0]}: {error.strerror}")
            return 127 if isinstance(error, FileNotFoundError) else 126
        if self._told_to_stop and not was_told:
            running.send_signal(signal.SIGTERM)  # it came while this one was not there yet
        code = running.wait()
        return 128 - code if code < 0 else code


def complain(text: str, *, keep: bool = False) -> None:
    """Into the log, and to the worker; `keep`: what was said there first is the cause and stays."""
    print(f"[ostler: {text}]", file=sys.stderr, flush=True)
    path = os.environ.get(ERROR_VARIABLE)
    if path and not (keep and os.path.exists(path)):
        with open(path, "w") as file:
            file.write(text)


def main() -> int:
    wanted = json.loads(sys.argv[1])
    steps = Steps()
    signal.signal(signal.SIGTERM, steps.stop)
    return steps.run(wanted["prolog"], wanted["command"], wanted["epilog"])


if __name__ == "__main__":
    sys.exit(main())
