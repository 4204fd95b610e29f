"""A hub as a process of its own, to be killed."""

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

START_WITHIN_S = 60.0
_PROGRAM = """
import sys
from pathlib import Path
from ostler.hub.main import HubOptions, run
sys.exit(run(HubOptions(state_dir=Path(sys.argv[1]), port=int(sys.argv[2]))))
"""


class ProcessHub:
    """On a port of the system's choice at first, and on the same one ever after."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.url = ""
        self.said: list[str] = []
        """What it wrote to standard error, by line."""
        self._port = 0
        self._reader: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self.state), str(self._port)], stderr=subprocess.PIPE, text=True
        )
        listening = threading.Event()
        self._reader = threading.Thread(target=self._listen, args=(self._process, listening), daemon=True)
        self._reader.start()
        assert listening.wait(START_WITHIN_S), self.said
        assert self.running, self.said

    def _listen(self, process: "subprocess.Popen[str]", listening: threading.Event) -> None:
        """Read what it says to the end, so that it never has to wait for that."""
        assert process.stderr is not None
        for line in process.stderr:
            self.said.append(line)
            if found := re.search(r"listens on (http://\S+:(\d+))", line):
                self.url, self._port = found[1], int(found[2])
                listening.set()
        listening.set()

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        assert self._reader is not None
        self._process.send_signal(number)
        code = self._process.wait(60)
        self._reader.join(60)
        return code

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def token(self, kind: str) -> str:
        return (self.state / f"{kind}.token").read_text().strip()
