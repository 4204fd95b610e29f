"""A command in a real terminal, as a person would have it before them."""

import fcntl
import os
import pty
import select
import struct
import termios
import time

from tests.process_fleet import OSTLER, ProcessFleet


class Terminal:
    def __init__(self, fleet: ProcessFleet, *arguments: str, rows: int = 24, columns: int = 80, **more: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            # Nothing that could be waited for happens before the start: the size is set by the parent meanwhile.
            env = {**fleet.environment, "TERM": "xterm-256color", **more}
            os.execve(OSTLER[0], [*OSTLER, *arguments], env)
        self.resize(rows, columns)
        self.shown = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def until(self, text: str, timeout_s: float = 60.0) -> str:
        """What has been shown since the last call, up to this text."""
        deadline = time.monotonic() + timeout_s
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, f"{timeout_s:g} s are over before {text!r}: {self.shown[-2000:]!r}"
            assert self._read(0.2), f"it ended before {text!r}: {self.shown[-2000:]!r}"
        shown, _, self.shown = self.shown.partition(text.encode())
        return shown.decode(errors="replace") + text

    def exit_code(self) -> int:
        """When it has ended; what it still has to show is read meanwhile."""
        while self._read(0.2):
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._fd)
        return code

    def _read(self, wait_s: float) -> bool:
        """False: nobody has the terminal open any more."""
        if select.select([self._fd], [], [], wait_s)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return False
            self.shown += data
            return bool(data)
        return True
