"""ARCHITECTURE.md is compared with the code, so that it stays true. To write its state table anew: python
tests/test_architecture.py"""

import re
from pathlib import Path

from ostler.domain import states

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
MARK = "<!-- made from domain/states.py by tests/test_architecture.py -->\n"


def state_table() -> str:
    rows = [f"| `{old}` | `{new}` | {why} |" for old, moves in states.MOVES.items() for new, why in moves.items()]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows]) + "\n"


def test_the_state_table_on_the_page_is_the_one_in_the_code() -> None:
    assert PAGE.read_text().partition(MARK)[2] == state_table()


def test_every_room_of_the_package_is_on_the_page_and_no_other() -> None:
    source = ROOT / "src" / "ostler"
    rooms = {folder.name for folder in source.iterdir() if (folder / "__init__.py").exists()}
    listed = set(re.findall(r"^\| `(\w+)/` \|", PAGE.read_text(), re.MULTILINE))
    assert listed == rooms


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py|config\.py)`", PAGE.read_text()))
    places = (ROOT, ROOT / "src" / "ostler")
    missing = {name for name in named if not any((place / name).exists() for place in places)}
    assert named
    assert not missing


def test_the_page_stays_a_page() -> None:
    assert len(PAGE.read_text().partition(MARK)[0].splitlines()) < 100


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(MARK)[0] + MARK + state_table())
