"""Every link between our own pages leads somewhere: to a file that is there, and to a heading that it has."""

import re
from pathlib import Path

import pytest
from docs.generate.site import CODE, DOCS, LINK, broken, our_pages, stage, target_of

ROOT = DOCS.parent
NAVIGATION = (DOCS / "site" / "zensical.toml").read_text()


def anchors(page: Path) -> set[str]:
    heads = re.findall(
        r"^#+ (.+)$", CODE.sub(lambda found: found[0].strip("`").replace("#", ""), page.read_text()), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", our_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for _, link, _ in LINK.findall(CODE.sub("", page.read_text())):
        file = target_of(link, page) or (page if link.startswith("#") else None)
        anchor = link.partition("#")[2]
        if file is not None and (
            not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file))
        ):
            wrong.append(link)
    assert not wrong


def test_every_entry_of_the_navigation_is_a_page() -> None:
    named = re.findall(r'"([^"]+\.md)"', NAVIGATION)
    places = [ROOT / name.removeprefix("repo/") if name.startswith("repo/") else DOCS / name for name in named]
    assert len(named) == len(set(named)) > 20
    assert not [place for place in places if not place.exists()]


def test_links_that_lead_nowhere_and_what_is_fetched_from_elsewhere_are_found_on_the_site(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="here"></h1><a href="#here"><a href="b.html#there"><a href="c.html">')
    (tmp_path / "b.html").write_text('<script src="https://elsewhere.example/x.js"></script><a href="a.html#here">')
    assert list(broken(tmp_path)) == [
        "docs: a.html: there is no place b.html#there",
        "docs: a.html: c.html leads nowhere",
        "docs: b.html would fetch https://elsewhere.example/x.js",
    ]


def test_links_that_leave_docs_are_turned_to_where_their_targets_are_on_the_site(tmp_path: Path) -> None:
    stage(tmp_path / "pages")
    page = (tmp_path / "pages" / "quickstart.md").read_text()
    assert "](repo/examples/README.md)" in page and "](reference/spec.md)" in page
    assert (tmp_path / "pages" / "repo" / "examples" / "commands.sh").exists()
    assert "`$OSTLER_INDEX`" in page and page.count("```") == (DOCS / "quickstart.md").read_text().count("```")
