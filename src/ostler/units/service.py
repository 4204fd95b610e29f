"""One description of a program that the machine itself starts and keeps running. What writes it down is elsewhere."""

import re
from typing import Literal

import msgspec

from ostler.domain.errors import BadInput

Scope = Literal["system", "user"]
"""The whole machine's, from its start on; or one user's, as long as that user may have services."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNSPEAKABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters, and what is no text: at least one of the three formats has no words for them."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    argv: tuple[str, ...]
    scope: Scope
    user: str
    """Whose rights it has."""
    stop_s: float
    """How long it may take to stop, from SIGTERM on."""
    log: str
    """Where its output goes, where the system keeps none by itself."""
    environment: dict[str, str] = {}
    outlived: bool = False
    """What it has started goes on without it, and is taken back by its next start."""
    final_codes: tuple[int, ...] = ()
    """Exit codes that another start would not change."""

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise BadInput(f"a service of the machine cannot be called {self.name!r}")
        words = (*self.argv, *self.environment, *self.environment.values(), self.title, self.user, self.log)
        for word in words:
            if _UNSPEAKABLE.search(word):
                raise BadInput(f"a service of the machine cannot be told {word!r}: it has a character that is no text")
