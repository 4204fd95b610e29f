"""A shelf in a folder of the hub's: the bytes are files there, and their other names are links to the same files."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import IO

from ostler.store.base import ZSTD, Asked, Stored, missing
from ostler.store.files import Files
from ostler.store.uploads import sync


class Folder(Files):
    def __init__(self, folder: Path, called: str, names: Path | None = None) -> None:
        """`names`: the folder in which the other names are, beside this one and what begins with a dot."""
        super().__init__(folder, called)
        self._names = names

    def look(self, sha256: str) -> Stored | None:
        try:
            with self.place(sha256).open("rb") as file:
                status = os.fstat(file.fileno())
                return Stored(status.st_size, file.read(len(ZSTD)) == ZSTD, status.st_mtime)
        except FileNotFoundError:
            return None

    def shelve(self, sha256: str, file: Path) -> None:
        place = self.place(sha256)
        place.parent.mkdir(exist_ok=True, mode=0o700)
        sync(place.parent.parent)
        os.replace(file, place)
        place.chmod(0o400)  # its other names are the same file: a stray write there would be one to all of them
        sync(place.parent)

    def find(self, sha256: str) -> bool:
        return self.has(sha256)

    def recall(self, sha256: str) -> None:
        """There is nothing to be known beside the bytes."""

    def open(self, sha256: str) -> IO[bytes]:
        try:
            return self.place(sha256).open("rb")
        except FileNotFoundError:
            raise missing(self.called, sha256) from None

    def link(self, sha256: str) -> str:
        return ""

    def ask(self, sha256: str, size: int, whose: str = "") -> Asked | None:
        return None

    def bury(self, sha256: str) -> None:
        self.place(sha256).unlink(missing_ok=True)

    def clear(self) -> None:
        """They are gone when they are buried."""

    def tidy(self) -> None:
        """What is on its way is not here."""

    # Other names

    def name(self, sha256: str, name: str) -> None:
        assert self._names is not None
        target = self._names / name
        if not target.exists():
            _make_folder(target.parent.parent)
            _make_folder(target.parent)
            _link_or_copy(self.place(sha256), target)
            sync(target.parent)

    def found_at(self, sha256: str, name: str) -> str:
        return name

    def renew(self, sha256: str) -> None:
        """Those that it had before: its bytes were damaged and were removed by hand, and have been brought again."""
        for folder in self._named_folders():
            for name in (folder / sha256).glob("bundle.tar*"):
                _link_or_copy(self.place(sha256), name)

    def unname(self, ids: Collection[str]) -> None:
        for folder in self._named_folders() if ids else ():
            for sha256 in ids:
                shutil.rmtree(folder / sha256, ignore_errors=True)
            if not any(folder.iterdir()):
                folder.rmdir()

    def _named_folders(self) -> list[Path]:
        if self._names is None:
            return []
        return [
            path
            for path in self._names.iterdir()
            if path.is_dir() and path.name[0] != "." and path.name != self._folder.name
        ]


def _make_folder(folder: Path) -> None:
    folder.mkdir(exist_ok=True, mode=0o700)
    sync(folder.parent)


def _link_or_copy(source: Path, target: Path) -> None:
    """In place of whatever is there, and never half of it."""
    part = target.with_name(f".{target.name}")
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:  # a file system without hard links has the same bytes twice
        shutil.copyfile(source, part)
        sync(part)
    os.replace(part, target)
