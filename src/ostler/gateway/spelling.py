"""How places in the configuration, and what is wrong there, are spelled."""

import json
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def spell(*path: str) -> str:
    """A key as TOML has it: `models."qwen2.5".ttl`."""
    return ".".join(part if _BARE.fullmatch(part) else quoted(part) for part in path)


def quoted(text: str) -> str:
    """A basic string of TOML, which is one of JSON but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def told(errors: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{where}: {what}" for where, what in errors)


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean …?', or all there is where nothing is near."""
    by_letters = {one.lower(): one for one in known}
    for close in get_close_matches(word.lower(), by_letters, n=1):
        return f"; did you mean {by_letters[close]!r}?"
    return f"; there are {', '.join(by_letters.values())}" if by_letters else ""
