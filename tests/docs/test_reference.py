"""What is made from the code says what the code does: `make reference` writes it anew."""

import pytest
from docs.generate.__main__ import DOCS, pages
from docs.generate.settings import undescribed

MADE = (
    *(
        "reference/commands.md",
        "reference/settings.md",
        "reference/spec.md",
        "reference/states.md",
        "reference/events.md",
    ),
    *("reference/http.md", "reference/metrics.md", "errors.md"),
    *("images/states.svg", "images/loop.svg", "images/rooms.svg", "images/swap.svg"),
)


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return dict(pages())


def test_every_page_of_the_reference_is_what_the_code_gives(made: dict[str, str]) -> None:
    stale = [name for name, text in made.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != text]
    assert not stale, "the code has changed: run `make reference` and look at what it wrote"
    assert set(made) == set(MADE)


def test_every_page_in_the_folder_is_made() -> None:
    assert {f"reference/{path.name}" for path in (DOCS / "reference").iterdir()} == {
        name for name in MADE if name.startswith("reference/")
    }


def test_every_variable_that_the_code_reads_is_described() -> None:
    assert not undescribed(), "describe them in docs/generate/settings.py (or spec.py, where tasks find them)"
