"""Command lines are split as a shell would split them."""

import shlex
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostler.gateway.argv import split, without_comments

PIECES = st.sampled_from(
    ["a", "b c", " ", "\t", "\n", "'", '"', "\\", "$x", "--k=v", "é", "#", "\\\n", "\\  \n", "''", "\r\n"]
)
LINES = st.lists(PIECES, max_size=14).map("".join)


def means_the_same_to_shlex(text: str) -> bool:
    """Python's splitter knows neither comments that begin at a word nor lines that go on."""
    return "#" not in text and "\\\n" not in text and "\\\r\n" not in text and "\\ " not in text and "\\\t" not in text


def outcome(split_it, text: str) -> list[str] | None:  # type: ignore[no-untyped-def]
    try:
        return split_it(text)
    except ValueError:
        return None


@given(LINES.filter(means_the_same_to_shlex))
@example("""a 'b "c' "d 'e" "f\\"g\\\\h\\i" j\\ k '' "" l''m""")
@example("'open")
@example('"open\\"')
@example("a\\")
def test_the_words_are_those_of_shlex(text: str) -> None:
    assert outcome(split, text) == outcome(shlex.split, text)


@given(st.lists(st.text(), max_size=6))
def test_what_shlex_quotes_comes_back(words: list[str]) -> None:
    assert split(shlex.join(words)) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a # b c", ["a"]),
        ("# isn't it\na", ["a"]),
        ("a#b c", ["a#b", "c"]),
        ("a '# b' \\# c", ["a", "# b", "#", "c"]),
        ("''#b", ["#b"]),
        ("a \\\n  b", ["a", "b"]),
        ("a\\\nb", ["ab"]),
        ("a \\  \n  b", ["a", "b"]),
        ("a \\\r\n b\r\nc", ["a", "b", "c"]),
        ("a \\\n  # a comment between\n  b", ["a", "b"]),
        ("a # ends in \\\nb", ["a", "b"]),
        ('"a \\\n b"', ["a  b"]),
        ('"a\\\\\nb"', ["a\\\nb"]),
        ("'a \\\n b'", ["a \\\n b"]),
        ("", []),
        (" \n# only a comment", []),
    ],
)
def test_comments_end_with_their_line_and_lines_may_go_on(text: str, words: list[str]) -> None:
    assert split(text) == words


@pytest.mark.parametrize("text", ["a # b\n", "a \\\n b", "a\\\nb # c", "a '# b' c#d", "''#b", 'x "a \\\n b"'])
def test_a_real_shell_agrees(text: str) -> None:
    script = f"for word in {text.strip()}\ndo printf '%s\\0' \"$word\"; done"
    told = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert split(text) == told.split("\0")[:-1]


@given(LINES)
def test_taking_the_comments_out_changes_no_word(text: str) -> None:
    words = outcome(split, text)
    assert outcome(split, without_comments(text)) == words
    if words is None:
        assert without_comments(text) == text


@pytest.mark.parametrize(("text", "what"), [("a 'b", "the last '"), ('a "b', 'the last "'), ("a \\", "backslash")])
def test_what_is_not_closed_is_named(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        split(text)
