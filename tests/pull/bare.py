"""The one file, copied to where nothing else of ours is, on a bare interpreter."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.pull.scripted_hub import PATIENCE_S

from ostler import pull


class PullWorker:
    def __init__(self, folder: Path, hub: str, *options: str, token: str = "a-token", **env: str) -> None:
        program = folder / "elsewhere" / "pull.py"
        program.parent.mkdir(exist_ok=True)
        shutil.copy(pull.__file__, program)
        self.work = folder / "work"
        often = ("--poll", "0.05", "--heartbeat-seconds", "0.05")
        known = ("--hub", hub, "--token", token, "--hostname", "pi", "--work", str(self.work))
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), *known, *often, *options],
            cwd=folder,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), **env},
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said, when it has ended by itself."""
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said

    def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()


Start = Callable[..., PullWorker]
