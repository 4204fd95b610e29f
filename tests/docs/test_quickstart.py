"""The quickstart is true: a stranger who types it sees what it shows."""

from pathlib import Path

import pytest
from tests.docs.console import Terminal, agrees, shown_on

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
README = (ROOT / "README.md").read_text()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_command_of_the_quickstart_does_what_the_page_shows(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    try:
        for one in shown_on(PAGE):
            said = terminal.run(one)
            assert agrees(said, one.output), f"$ {one.command}\nthe page shows:\n{one.output}\nit said:\n{said}"
    finally:
        terminal.close()


def test_the_page_has_commands_and_a_program_with_its_output() -> None:
    found = list(shown_on(PAGE))
    assert len([one for one in found if one.kind == "console"]) > 10
    assert [one.output.split() for one in found if one.kind == "python"] == [["144", "[0,", "1,", "4,", "9,", "16]"]]


@pytest.mark.parametrize(
    ("said", "shown", "is_so"),
    [
        ("job 01m7g868vpjavhqp5v\nhello\n", "job 01aaaaaaaaaaaaaaaa\nhello\n", True),
        ("job 01m7g868vpjavhqp5v\nhallo\n", "job 01aaaaaaaaaaaaaaaa\nhello\n", False),
        ("a   1s\nb\nc\n", "a 27s\n...\n", True),
        ("a\n", "a\n...\n", True),
        ("a\nb\n", "a\n", False),
    ],
)
def test_outputs_are_compared_by_their_shape(said: str, shown: str, is_so: bool) -> None:
    assert agrees(said, shown) is is_so


def test_the_readme_shows_no_command_that_the_quickstart_does_not_run() -> None:
    typed = {one.command for one in shown_on(PAGE)}
    assert {one.command for one in shown_on(README)} <= typed
