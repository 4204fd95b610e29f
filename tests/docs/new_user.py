"""A new user's way to the first job, from the README alone, in an empty folder: `make new-user`.

Clones this checkout (or, with `--tree`, copies it as it is on the disk), types the commands under "The first job" and
prints the time of each step, by the clock and of processor time. `make test` is typed only with `--tests`. Ends with 1
if the first job took longer than `--limit`.
"""

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from console import Terminal, agrees, shown_on  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parents[2]
SECTION = re.compile(r"^## The first job\n(.*?)^## ", re.DOTALL | re.MULTILINE)
TYPED = re.compile(r"^    ([^#\n]+?)(?: +#.*)?$", re.MULTILINE)


def main() -> int:
    given = _options()
    folder = Path(tempfile.mkdtemp(prefix="ostler-new-user-"))
    began = time.monotonic()
    try:
        checkout = folder / "ostler"
        step("copy the checkout" if given.tree else "git clone", lambda: bring(checkout, given.tree))
        section = SECTION.search((checkout / "README.md").read_text())
        assert section, "the README has no section `The first job`"
        for line in TYPED.findall(section[1]):
            if line in ("make demo", "make test") and (line != "make test" or given.tests):
                step(line, lambda line=line: subprocess.run(["bash", "-c", line], cwd=checkout, check=True))  # type: ignore[misc]
        work = folder / "work"
        work.mkdir()
        terminal = Terminal(work, checkout / ".venv" / "bin")
        try:
            for one in shown_on(section[1]):
                said = step(f"$ {one.command}", lambda one=one: terminal.run(one))  # type: ignore[misc]
                assert not one.output or agrees(str(said), one.output), (
                    f"the README shows:\n{one.output}\nit said:\n{said}"
                )
            took = time.monotonic() - began
        finally:
            terminal.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{took:8.1f} s  {spent():6.1f} s of processor time  from nothing to the first job's output")
    return 1 if given.limit and took > given.limit else 0


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description="The README's way to the first job, from a clone, with the time of each step."
    )
    options.add_argument("--tree", action="store_true", help="copy the files as they are, in place of a clone")
    options.add_argument("--tests", action="store_true", help="run `make test`, too")
    options.add_argument("--limit", type=float, default=300.0, help="seconds to the first job; 0: none")
    return options.parse_args()


def bring(checkout: Path, as_it_is: bool) -> None:
    if not as_it_is:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
        return
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)


def step(what: str, do: Callable[[], object]) -> object:
    began, used = time.monotonic(), spent()
    found = do()
    print(f"{time.monotonic() - began:8.1f} s  {spent() - used:6.1f} s of processor time  {what}", flush=True)
    return found


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
