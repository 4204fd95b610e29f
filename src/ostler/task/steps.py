"""Runs a task's command between its prolog and its epilog.

    python -m ostler.task.steps '{"prolog": [...], "command": [...], "epilog": [...]}'

The prolog must succeed, or the command is not run. The epilog runs whatever happened: after a failed prolog, after a
failed command, and after SIGTERM, for as long as the grace lasts. The exit code is the command's (or the prolog's);
the log has every other failure. So has the file $OSTLER_ERROR, for the worker: its first line is the reason for the
exit code, and is empty if the command ended with that code by itself; the lines after it are failures that came later.
Standard library only.
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
        code, failure = self._step("prolog", prolog) if prolog else (0, "")
        if code == 0 and not self._told_to_stop:
            code, failure = self._step("command", command)
        elif code != 0:
            failure += "; the command was not run"
        if failure:
            complain(failure)
        if epilog:
            ended, failure = self._step("epilog", epilog)
            if ended != 0:
                complain(failure, is_later=code != 0)
                code = code or ended
        return code

    def _step(self, name: str, argv: list[str]) -> tuple[int, str]:
        """Runs one step. Returns its exit code, and a sentence if it failed: none for a command that ended by itself,
        because the worker has better words for its exit code."""
        try:
            was_told = self._told_to_stop
            running = subprocess.Popen(argv)
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            return code, f"the {name} could not be started: {argv[0]}: {error.strerror}"
        if self._told_to_stop and not was_told:
            running.send_signal(signal.SIGTERM)  # it came while this one was not there yet
        code = running.wait()
        code = 128 - code if code < 0 else code
        return code, f"the {name} failed with exit code {code}" if code and name != "command" else ""


def complain(text: str, *, is_later: bool = False) -> None:
    """Writes a failure to the log and to the worker's file. `is_later`: it does not explain the exit code."""
    print(f"[ostler: {text}]", file=sys.stderr, flush=True)
    path = os.environ.get(ERROR_VARIABLE)
    if path:
        with open(path, "a") as file:
            file.write(f"\n{text}" if is_later else text)


def main() -> int:
    wanted = json.loads(sys.argv[1])
    steps = Steps()
    signal.signal(signal.SIGTERM, steps.stop)
    return steps.run(wanted["prolog"], wanted["command"], wanted["epilog"])


if __name__ == "__main__":
    sys.exit(main())
