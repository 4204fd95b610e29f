"""The worker's token: the one it was started with, or the one that the hub has given it since."""

import contextlib
import os
from pathlib import Path

from ostler.domain.hubs import same_fleet

FILE = "worker.token"
HUBS_FILE = "hubs"


class Credentials:
    """The worker's own token goes first; one that the hub no longer knows gives way to the one it was started with, and
    that to what stands in its file by now: it may have been replaced."""

    def __init__(self, folder: Path, hub: str, given: str, source: Path | None = None) -> None:
        self._path = folder / FILE
        self._hub = hub
        self._source = source
        self._given = given
        own = _read(self._path, hub)
        self._tokens = [token for token in dict.fromkeys((own, given)) if token]
        self.unsaid = bool(own)
        """The hub may not have heard that the worker keeps the one it was given: what was before is good until then."""

    @property
    def token(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def refused(self) -> bool:
        """The hub does not take the present one; True if there is another to try."""
        del self._tokens[:1]
        self.unsaid = False
        if not self._tokens and self._source is not None:
            with contextlib.suppress(OSError, IndexError):
                newer = self._source.read_text().split()[0]
                if newer != self._given:
                    self._given = newer
                    self._tokens.append(newer)
        return bool(self._tokens)

    def received(self, token: str) -> None:
        """The hub has made this worker a token of its own."""
        self._tokens.insert(0, token)
        self.unsaid = True
        part = self._path.with_name(f".{FILE}.part")
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n{self._hub}\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path)


def remember(folder: Path, given: str, known: list[str]) -> None:
    """Where the fleet's hubs are, as one of them told: a worker that starts while that one is away needs the others."""
    text = "\n".join([given, *known, ""])
    file = folder / HUBS_FILE
    if not file.exists() or file.read_text() != text:
        part = file.with_name(f".{HUBS_FILE}.part")
        part.write_text(text)
        part.replace(file)


def told_of(folder: Path, given: str) -> list[str]:
    """What was remembered, if it was told by those that are given."""
    try:
        whose, *known = (folder / HUBS_FILE).read_text().split()
    except (OSError, ValueError):
        return []
    return known if same_fleet(whose, given) else []


def _read(path: Path, hub: str) -> str:
    """A token that was made by another hub is not shown to this one."""
    try:
        lines = path.read_text().split()
    except OSError:
        return ""
    return lines[0] if lines and (not lines[1:] or same_fleet(lines[1], hub)) else ""
