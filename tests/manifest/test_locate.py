"""Every key has a line."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.manifest.samples import SAMPLES

from ostler.manifest.locate import Path, locate, places, spell

TEXT = '''\
# a comment = 1
top = 1
"quoted key" = 2
'literal.key' = 3
dotted . "k\\u0065y" = 4
multi = """
[[jobs]]
not = "a key"
\\""" still inside """
raw = \'\'\'
[x]
\'\'\'  # comment
list = [
  1,
  [2, 3], # ] , "
  { a = 1, b.c = [
     "x",
  ] },
]
[table]
inline = { a = { b = 1 }, "c" = ["]", '}'] }
[[jobs]]
name = "a"
[jobs.hyper]
lr = 1
[[jobs.list]]
n = 1
[[jobs.list]]
n = 2
[[jobs]]
[jobs.hyper]
lr = 2
[[jobs.list]]
n = 3
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("quoted key",), 3),
        (("literal.key",), 4),
        (("dotted",), 5),
        (("dotted", "key"), 5),
        (("multi",), 6),
        (("raw",), 10),
        (("list",), 13),
        (("list", 0), 14),
        (("list", 1), 15),
        (("list", 1, 1), 15),
        (("list", 2), 16),
        (("list", 2, "a"), 16),
        (("list", 2, "b", "c"), 16),
        (("list", 2, "b", "c", 0), 17),
        (("list", 2, "b"), 16),
        (("table",), 20),
        (("table", "inline", "a", "b"), 21),
        (("table", "inline", "c", 1), 21),
        (("jobs",), 22),
        (("jobs", 0), 22),
        (("jobs", 0, "name"), 23),
        (("jobs", 0, "hyper"), 24),
        (("jobs", 0, "hyper", "lr"), 25),
        (("jobs", 0, "list", 0), 26),
        (("jobs", 0, "list", 1, "n"), 29),
        (("jobs", 1), 30),
        (("jobs", 1, "hyper", "lr"), 32),
        (("jobs", 1, "list", 0, "n"), 34),
        # What is not there is where it would be.
        ((), 1),
        (("missing",), 1),
        (("jobs", 0, "missing"), 22),
        (("jobs", 1, "hyper", "missing", 3), 31),
        (("list", 9), 13),
    ],
)
def test_a_path_leads_to_its_line(path: Path, line: int) -> None:
    tomllib.loads(TEXT)
    assert locate(TEXT, {path}) == {path: line}


def keys_in(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every key of what the reader made of a text."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name)
            yield from keys_in(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from keys_in(inner, (*path, index))


@pytest.mark.parametrize("text", [TEXT, *SAMPLES])
def test_every_key_that_the_reader_finds_is_found(text: str) -> None:
    lines = text.replace("\\u0065", "e").splitlines()
    paths = set(keys_in(tomllib.loads(text)))
    assert paths <= {path for path, _ in places(text)}
    for path, line in locate(text, paths).items():
        assert str(path[-1]) in lines[line - 1]


def test_a_path_is_spelt_as_people_write_it() -> None:
    assert spell(("jobs", 2, "hyper", "lr")) == "jobs[2].hyper.lr"
    assert spell(("hosts", "a.b", "allow_jobs", 0)) == 'hosts."a.b".allow_jobs[0]'
    assert spell(()) == ""


@pytest.mark.parametrize(
    "text", ["a", "a =", "= 1", "[", "[[a", "[a] [b", "a = [1", "a = {b", 'a = "', "a = '''", "é = 1"]
)
def test_a_text_that_breaks_off_ends_the_walk(text: str) -> None:
    list(places(text))
    list(places("ok = 1\n" + text))
    assert locate("ok = 1\n" + text, {("ok",)}) == {("ok",): 1}
