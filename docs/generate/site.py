"""The site: pages are brought together, built strictly, and looked through for links that lead nowhere.

    python -m docs.generate.site ZENSICAL out/site

Links that leave docs/ (`../examples/README.md`) work on GitHub and in an editor; here their targets are brought along,
below `repo/`, and the links are turned there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LEFT_OUT = ("generate", "site", "__pycache__", ".mypy_cache")
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
CODE = re.compile(r"^(?:```.*?^```|(?:    |\t)[^\n]*)$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
ELSEWHERE = "repo"
MORE = "        # {more}\n"
FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}


def main(zensical: str, target: Path) -> int:
    build = target.with_name(target.name + "-build")
    for folder in (build, target):
        shutil.rmtree(folder, ignore_errors=True)
    pages = build / "pages"
    stage(pages)
    config = build / "zensical.toml"
    text = (DOCS / "site" / "zensical.toml").read_text()
    more = "".join(
        f"        {{ {json.dumps(title)} = {json.dumps(name)} }},\n" for name, title in unlisted(pages, text)
    )
    config.write_text(text.replace("{docs_dir}", pages.name).replace("{site_dir}", "site").replace(MORE, more))
    done = subprocess.run([zensical, "build", "--strict", "--config-file", str(config)], cwd=build, check=False)
    if done.returncode:
        return done.returncode
    shutil.move(build / "site", target)
    wrong = list(broken(target))
    print("\n".join(wrong) or f"docs: {sum(1 for _ in target.rglob('*.html'))} pages in {target}")
    return 1 if wrong else 0


def our_pages() -> list[Path]:
    """Every page of the repository that is ours, wherever it lies."""
    below = [path for folder in ("docs", "examples", "chaos") for path in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *(path for path in below if "node_modules" not in path.parts)])


def stage(pages: Path) -> None:
    """docs/ as it is, and below `repo/` what its pages lead to."""
    shutil.copytree(DOCS, pages, ignore=shutil.ignore_patterns(*LEFT_OUT))
    waiting = [(path, DOCS / path.relative_to(pages)) for path in pages.rglob("*.md")]
    brought: set[Path] = set()
    while waiting:
        page, origin = waiting.pop()
        for found in sorted(_turned(page, origin, pages)):
            if found not in brought:
                brought.add(found)
                copy = pages / ELSEWHERE / found.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, copy)
                waiting += [(copy, found)] if found.suffix == ".md" else []


def _turned(page: Path, origin: Path, pages: Path) -> set[Path]:
    """Turn the page's links to where their targets are on the site; those that lie outside docs/ come back."""
    outside: set[Path] = set()

    def turn(match: re.Match[str]) -> str:
        file = target_of(match[2], origin)
        if file is None or not file.exists():
            return match[0]
        file = file / "README.md" if file.is_dir() else file
        inside = file.is_relative_to(DOCS)
        if not inside:
            outside.add(file)
        place = pages / file.relative_to(DOCS) if inside else pages / ELSEWHERE / file.relative_to(ROOT)
        anchor = match[2].partition("#")[2]
        return match[1] + _from(page, place) + (f"#{anchor}" if anchor else "") + match[3]

    text = page.read_text()
    kept = iter(CODE.findall(text))
    parts = [LINK.sub(turn, part) + next(kept, "") for part in CODE.split(text)]
    page.write_text("".join(parts))
    return outside


def target_of(link: str, page: Path) -> Path | None:
    """The file that a link on this page names; None for other sites and for places on the page itself."""
    if re.match(r"[a-z]+:", link) or link.startswith("#"):
        return None
    return (page.parent / unquote(link.partition("#")[0])).resolve()


def _from(page: Path, place: Path) -> str:
    return Path(os.path.relpath(place, page.parent)).as_posix()


# What the builder does not look for


def unlisted(pages: Path, config: str) -> Iterator[tuple[str, str]]:
    """Pages of docs/ that the navigation does not name, and their titles: they come at the end of the how-tos."""
    named = set(re.findall(r'"([^"]+\.md)"', config))
    for path in sorted(pages.rglob("*.md")):
        name = path.relative_to(pages).as_posix()
        if name not in named and not name.startswith(f"{ELSEWHERE}/"):
            yield name, path.read_text().partition("\n")[0].lstrip("# ")


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if (tag, name) in FETCHED and value:
                self.fetched.append(value)
            if (tag, name) == ("a", "href") and value:
                self.links.append(value)


def broken(site: Path) -> Iterator[str]:
    """Links to files or places that are not there, and anything that would be fetched from another site."""
    read = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    for path, page in sorted(read.items()):
        name = path.relative_to(site)
        for link in page.fetched:
            if urlsplit(link).netloc:
                yield f"docs: {name} would fetch {link}"
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or name.name == "404.html":
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists():
                yield f"docs: {name}: {link} leads nowhere"
            elif parts.fragment and file in read and unquote(parts.fragment) not in read[file].ids:
                yield f"docs: {name}: there is no place {link}"


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).absolute()), Path(sys.argv[2]).resolve()))
