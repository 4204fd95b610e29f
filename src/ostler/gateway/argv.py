"""A command line as people write it, split into words as a shell would, with no shell to run."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_PIECE = re.compile(
    r"""
      (?P<continued>\\[ \t]*\r?\n)
    | (?P<blank>[ \t\r\n]+)
    | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | \\(?P<escaped>.)
    | (?P<plain>[^ \t\r\n'"\\]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"#[^\n]*")
_IN_QUOTES = re.compile(r'\\(?:(["\\])|\r?\n)')


class _Piece(NamedTuple):
    kind: str
    written: str
    meant: str


def split(text: str) -> list[str]:
    """The words: quotes and backslashes as in a shell, `#` to the end of its line is nothing where a word could begin,
    and the end of a line is a blank. ValueError says what is not closed."""
    words: list[str] = []
    open_word: list[str] = []
    begun = False
    for piece in _pieces(text):
        if piece.kind == "blank":
            if begun:
                words.append("".join(open_word))
            open_word, begun = [], False
        elif piece.kind not in ("comment", "continued"):
            open_word.append(piece.meant)
            begun = True
    return [*words, "".join(open_word)] if begun else words


def without_comments(text: str) -> str:
    """The same line of words, so that what a comment mentions counts for nothing; as it is where it has no words."""
    try:
        return "".join(piece.written for piece in _pieces(text) if piece.kind != "comment")
    except ValueError:
        return text


def _pieces(text: str) -> Iterator[_Piece]:
    at, in_word = 0, False
    while at < len(text):
        comment = None if in_word else _COMMENT.match(text, at)
        found = comment or _PIECE.match(text, at)
        if found is None:
            raise ValueError("it ends in a backslash" if text[at] == "\\" else f"the last {text[at]} is not closed")
        kind = "comment" if comment else str(found.lastgroup)
        yield _Piece(kind, found[0], _meant(kind, found[found.lastgroup or 0]))
        in_word = kind not in ("blank", "comment") and (in_word or kind != "continued")
        at = found.end()


def _meant(kind: str, inside: str) -> str:
    return _IN_QUOTES.sub(lambda found: found[1] or "", inside) if kind == "double" else inside
