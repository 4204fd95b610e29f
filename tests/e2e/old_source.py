"""The code of an older commit, beside this tree's, for processes that run it; and which of the two a process runs."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.process_fleet import ProcessFleet

import ostler

OLD_COMMIT = "1a3b16509db7db9c8e28a74dfec6e7406a6ab7ef"
ROOT = Path(__file__).parent.parent.parent
NEW_SOURCE = Path(ostler.__file__).resolve().parent.parent
LOCATED = (sys.executable, "-P", str(Path(__file__).with_name("located.py")))


def unpack_old_source(folder: Path) -> Path:
    """Puts the package as OLD_COMMIT has it into `folder`, and returns the folder to import it from. Skips the test
    where that commit is not to be had: in an sdist, or a shallow clone."""
    try:
        found = subprocess.run(
            ["git", "-C", str(ROOT), "archive", OLD_COMMIT, "src/ostler"], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("git is not installed, so that no older commit can be run")
    if found.returncode != 0:
        reason = found.stderr.decode(errors="replace").strip()
        pytest.skip(f"commit {OLD_COMMIT[:7]} cannot be read from git here: {reason}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=found.stdout, check=True)
    return folder / "src"


def sources_run(fleet: ProcessFleet, name: str) -> list[Path]:
    """The folders that the processes of this name have imported Ostler from, in the order of their starts."""
    log = (fleet.folder / f"{name}.log").read_text(errors="replace")
    found = [line.partition("ostler is in ")[2] for line in log.splitlines()]
    return [Path(package).parent for package in found if package]
