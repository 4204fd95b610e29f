"""Where whole bytes stand by their sha256: one Protocol for a folder of the hub's and for a bucket."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Protocol

import msgspec

from ostler.domain.errors import BadInput, NotFound

ZSTD = b"\x28\xb5\x2f\xfd"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Stored(msgspec.Struct, frozen=True):
    size: int
    compressed: bool
    touched_at: float
    """When it came, or was last brought or asked for by somebody who would have brought it."""


class Shelf(Protocol):
    """What nobody has verified never stands here. `has`, `look`, `touch` and `bury` go by what is on the hub's own disk
    and answer at once; everything else may block, and is called in a thread."""

    called: str
    """What one of these is, in errors."""

    def place(self, sha256: str) -> Path:
        """The file of this one on the hub's own disk: its bytes, or what is known of them. BadInput if that is no
        sha256."""
        ...

    def has(self, sha256: str) -> bool: ...

    def look(self, sha256: str) -> Stored | None:
        """None: it is not here."""
        ...

    def places(self, beginning: str = "") -> Iterator[Path]:
        """The files of all, or of those whose sha256 begins so."""
        ...

    def shelve(self, sha256: str, file: Path) -> None:
        """Take in a file that was verified and forced to the disk. StoreAway: not now, and the file is as it was."""
        ...

    def find(self, sha256: str) -> bool:
        """Whether the bytes of one are there of which nothing is known here: then it is verified, and known again."""
        ...

    def recall(self, sha256: str) -> None:
        """At a start, of one that was here: know it again, if what was known of it is lost."""
        ...

    def open(self, sha256: str) -> IO[bytes]:
        """The bytes, at their beginning. NotFound where they are not."""
        ...

    def link(self, sha256: str) -> str:
        """Where the bytes may be fetched for a while by whoever has this address; "": the hub hands them out."""
        ...

    def ask(self, sha256: str, size: int, whose: str = "") -> "Asked | None":
        """For whoever would bring the bytes to where they stand, past the hub: what is missing there yet. When nothing
        is, it is verified and taken in. `whose`: one who has to prove to have them. None: they go through the hub."""
        ...

    def bury(self, sha256: str) -> None:
        """From now on it is not here."""
        ...

    def clear(self) -> None:
        """Remove the bytes of those that were buried."""
        ...

    def tidy(self) -> None:
        """Also what was begun and not gone on with for long."""
        ...

    def name(self, sha256: str, name: str) -> None:
        """Let it be found under this name too, as far as that can be had."""
        ...

    def found_at(self, sha256: str, name: str) -> str:
        """Where people find it who look for it without the hub: under this name, if it can have one."""
        ...

    def renew(self, sha256: str) -> None:
        """Its other names lead to what stands here now."""
        ...

    def unname(self, ids: Collection[str]) -> None:
        """No other name leads to these."""
        ...


class Piece(msgspec.Struct, frozen=True):
    """Bytes first ≤ byte < end go to this address with these headers, in one PUT."""

    url: str
    first: int
    end: int
    headers: dict[str, str]


class Asked(msgspec.Struct, frozen=True):
    size: int
    """What is there already."""
    whole: bool = False
    pieces: list[Piece] = []


def must_be_sha256(text: str, called: str) -> None:
    if not is_sha256(text):
        raise BadInput(f"a {called} is named by its sha256: 64 lower-case hexadecimal digits")


def is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None


def differs(found: str, sha256: str) -> BadInput:
    return BadInput(f"the bytes hash to {found}, not to {sha256}; nothing was kept", [("body", "hash differs")])


def missing(called: str, sha256: str) -> NotFound:
    return NotFound(f"there is no {called} {sha256}")
