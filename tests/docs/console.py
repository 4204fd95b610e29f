"""What a page shows is run: the commands of its console blocks, each compared in shape with the output shown below it."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n((?:    [^\n]*\n)+))?", re.DOTALL | re.MULTILINE)
ID = re.compile(r"\b(?=[0-9a-z]*\d)[0-9a-z]{12,}\b")
NUMBER = re.compile(r"\d+(\.\d+)?")
ANYTHING = "..."
UP = "ostler up"
PATIENCE_S = 60.0


class Shown(NamedTuple):
    """A command as it stands on a page, and what is shown below it."""

    kind: str
    command: str
    output: str


def shown_on(page: str) -> Iterator[Shown]:
    for kind, body, below in BLOCK.findall(page):
        if kind == "console":
            for piece in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, output = piece.partition("\n")
                yield Shown(kind, command, output)
        elif kind == "python":
            yield Shown(kind, body, "".join(line[4:] or "\n" for line in below.rstrip("\n").splitlines(keepends=True)))


def shape(text: str) -> list[str]:
    """What stays the same from run to run: no ids, no numbers, no machine's name, no columns."""
    text = text.replace(socket.gethostname().partition(".")[0], "box")
    return [" ".join(NUMBER.sub("0", ID.sub("ID", line)).split()) for line in text.splitlines() if line.strip()]


def agrees(said: str, shown: str) -> bool:
    """Line by line; `...` stands for any number of lines, none too."""
    pattern = [".*?" if line == ANYTHING else re.escape(line + "\n") for line in shape(shown)]
    return re.fullmatch("".join(pattern), "".join(line + "\n" for line in shape(said)), re.DOTALL) is not None


class Terminal:
    """A folder of its own with a state of its own, in which the page's commands are run one after the other."""

    def __init__(self, folder: Path, programs: Path = Path(sys.executable).parent) -> None:
        """`programs`: where `ostler` and `python` are."""
        self.folder = folder
        self.programs = programs
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "COLUMNS"))}
        path = os.pathsep.join([str(programs), kept.get("PATH", os.defpath)])
        state = str(folder / "state")
        self.env = {**kept, "PATH": path, "OSTLER_STATE_DIR": state, "NO_COLOR": "1", "COLUMNS": "200"}
        self._up: subprocess.Popen[bytes] | None = None

    def run(self, one: Shown) -> str:
        if one.command == UP:
            return self._start()
        argv = [str(self.programs / "python"), "-c"] if one.kind == "python" else ["bash", "-c"]
        done = subprocess.run(
            [*argv, one.command],
            cwd=self.folder,
            env=self.env,
            text=True,
            timeout=PATIENCE_S,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, f"{one.command}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def _start(self) -> str:
        """On ports that are free here, whatever the page says: others may run a hub beside this."""
        log = self.folder / "up.log"
        with log.open("wb") as out:
            command = [str(self.programs / "ostler"), "up", "--port", "0", "--gateway-port", "0"]
            self._up = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=out, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + PATIENCE_S
        while "Ostler is up" not in log.read_text():
            assert self._up.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        return log.read_text()

    def close(self) -> None:
        if self._up is not None:
            self._up.terminate()
            self._up.wait(PATIENCE_S)
