"""Files by their sha256, spread over folders: what both kinds of shelf have on the hub's own disk."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from ostler.store.base import is_sha256, missing, must_be_sha256


class Files:
    def __init__(self, folder: Path, called: str) -> None:
        self.called = called
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, sha256: str) -> Path:
        """Where it is; NotFound where it is not."""
        path = self.place(sha256)
        if not path.exists():
            raise missing(self.called, sha256)
        return path

    def has(self, sha256: str) -> bool:
        """Also of what is no name of one at all."""
        return is_sha256(sha256) and self.place(sha256).exists()

    def place(self, sha256: str) -> Path:
        """Where it belongs."""
        must_be_sha256(sha256, self.called)
        return self._folder / sha256[:2] / sha256

    def places(self, beginning: str = "") -> Iterator[Path]:
        if beginning.strip("0123456789abcdef"):
            return
        for folder in sorted(self._folder.glob(f"{beginning[:2]}*")):
            if len(folder.name) == 2:
                yield from (
                    path for path in folder.iterdir() if is_sha256(path.name) and path.name.startswith(beginning)
                )


def touch(path: Path) -> None:
    """By the exact clock: the file system's own runs behind it."""
    os.utime(path, ns=(time.time_ns(),) * 2)
