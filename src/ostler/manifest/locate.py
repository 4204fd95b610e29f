"""Where in a TOML text a key stands. The standard library's reader gives no positions, so this walks the text itself.

It is more lenient than TOML and runs before the reader: whatever it does not understand, the reader refuses. What would
cost the reader more than its share (keys and values nested without end, numbers of thousands of digits) is refused.
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterator

Path = tuple[str | int, ...]

MAX_DEPTH = 32
MAX_SCALAR = 1000

# Only single characters repeat possessively: a possessive group matches wrongly before Python 3.11.5 (gh-106052).
# The parts of a group begin with different characters, so that greedy groups match the same in the same time.
_BLANK = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*")
_SPACE = re.compile(r"[ \t]*+")
_KEY = re.compile(r"""[A-Za-z0-9_-]++|"(?:[^"\\\n]++|\\.)*"|'[^'\n]*+'""")
_STRING = re.compile(
    r'"""(?:[^"\\]++|\\.|"{1,2}(?!"))*"{3,5}'
    r"|'''(?:[^']++|'{1,2}(?!'))*'{3,5}"
    r'|"(?!"")(?:[^"\\\n]++|\\.)*"'
    r"|'(?!'')[^'\n]*+'",
    re.DOTALL,
)
_FLAT = re.compile(
    r"""\[(?:[ \t,]++|[^\s,\[\]{}"'#]{1,1000}+(?![^\s,\[\]{}"'#])"""
    r"""|"(?!"")(?:[^"\\\n]++|\\[^\n])*"|'(?!'')[^'\n]*+')*\]"""
)
"""A list of plain values on one line: all of it is where it begins, and most lists are such."""
_BARE = re.compile(r"""[^\n,\]}#"'\[{]++""")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Refused(Exception):
    """The text asks for more than the reader should be given."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


class _Lost(Exception):
    """This is not TOML: the walk ends here."""


def locate(text: str, wanted: Collection[Path]) -> dict[Path, int]:
    """The line of each path; where it has none of its own, that of the nearest thing around it."""
    around = {path[:length] for path in wanted for length in range(1, len(path) + 1)}
    lines: dict[Path, int] = {(): 1}
    for path, line in places(text):
        if path in around:
            lines.setdefault(path, line)
    return {path: next(lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines) for path in wanted}


def spell(path: Path) -> str:
    """As people write it: jobs[2].hyper.lr"""
    parts = [f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in path]
    return "".join(parts).removeprefix(".")


def _key(part: str) -> str:
    short = part if len(part) <= 60 else part[:59] + "…"
    return short if _BARE_KEY.fullmatch(short) else json.dumps(short, ensure_ascii=False)


def places(text: str) -> Iterator[tuple[Path, int]]:
    """Every table, key and element with its line, in the order of the text; things begin where they first come up."""
    try:
        yield from _Walk(text).statements()
    except _Lost:
        return


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._line = 1
        self._counted = 0
        self._last: dict[Path, int] = {}
        """Of each array of tables the index of its newest."""

    def statements(self) -> Iterator[tuple[Path, int]]:
        table: Path = ()
        while True:
            self._skip(_BLANK)
            if self.at >= len(self.text):
                return
            line = self._line_here()
            if self._next() == "[":
                table = self._header()
                yield from ((table[:length], line) for length in range(1, len(table) + 1))
            else:
                keys = self._keys()
                yield from ((table + keys[:length], line) for length in range(1, len(keys)))
                self._expect("=")
                yield from self._value(table + keys, line)

    def _header(self) -> Path:
        self._expect("[")
        is_array = self._next() == "["
        if is_array:
            self._expect("[")
        path: Path = ()
        keys = self._keys()
        for place, key in enumerate(keys, 1):
            path = (*path, key)
            if is_array and place == len(keys):
                self._last[path] = self._last.get(path, -1) + 1
            if path in self._last:
                path = (*path, self._last[path])
        self._expect("]")
        if is_array:
            self._expect("]")
        return path

    def _keys(self) -> Path:
        keys: Path = ()
        while True:
            self._skip(_SPACE)
            found = _KEY.match(self.text, self.at)
            if found is None:
                raise _Lost
            self.at = found.end()
            keys = (*keys, _plain(found[0]))
            self._bound(keys)
            self._skip(_SPACE)
            if self._next() != ".":
                return keys
            self.at += 1

    def _value(self, path: Path, line: int) -> Iterator[tuple[Path, int]]:
        """The value here and all that is inside it."""
        around: list[tuple[Path, int]] = []  # innermost last: lists with their next index, inline tables with -1
        while True:
            self._bound(path)
            yield path, line
            self._skip(_SPACE)
            bracket = self._next()
            flat = _FLAT.match(self.text, self.at) if bracket == "[" else None
            if flat:
                self.at = flat.end()
            elif bracket in ("[", "{"):
                around.append((path, 0 if bracket == "[" else -1))
                self.at += 1
            else:
                self._scalar()
            self._close(around)
            if not around:
                return
            path, index = around[-1]
            line = self._line_here()
            if index >= 0:
                around[-1] = (path, index + 1)
                path = (*path, index)
            else:
                keys = self._keys()
                yield from ((path + keys[:length], line) for length in range(1, len(keys)))
                path += keys
                self._expect("=")

    def _close(self, around: list[tuple[Path, int]]) -> None:
        """On to the next value inside, or out of what ends here."""
        while around:
            self._skip(_BLANK)
            mark = self._next()
            if mark not in (",", "]", "}"):
                return
            self.at += 1
            if mark != ",":
                around.pop()

    def _scalar(self) -> None:
        found = _STRING.match(self.text, self.at)
        if found is None:
            found = _BARE.match(self.text, self.at)
            if found is None:
                raise _Lost
            if len(found[0]) > MAX_SCALAR and len(found[0].strip()) > MAX_SCALAR:
                raise Refused(self._line_here(), f"a number of over {MAX_SCALAR} characters")
        self.at = found.end()

    def _bound(self, path: Path) -> None:
        if len(path) > MAX_DEPTH:
            raise Refused(self._line_here(), f"nested more than {MAX_DEPTH} deep")

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _expect(self, mark: str) -> None:
        self._skip(_SPACE)
        if self._next() != mark:
            raise _Lost
        self.at += 1

    def _line_here(self) -> int:
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line


def _plain(key: str) -> str:
    if key[0] not in "\"'":
        return key
    if key[0] == "'" or "\\" not in key:
        return key[1:-1]
    try:
        return str(tomllib.loads(f"key = {key}")["key"])
    except ValueError:
        raise _Lost from None
