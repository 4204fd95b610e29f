"""A client in TypeScript, made from a real hub's description by openapi-typescript and run against that hub.

Takes half a minute and packages from npm, so it runs where it is asked for: make typescript.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import ostler
from ostler.client import Fleet

EXAMPLE = Path(__file__).parents[2] / "examples" / "typescript"
WANTED = os.environ.get("OSTLER_TEST_TYPESCRIPT")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not WANTED, reason="`make typescript` runs these"),
    pytest.mark.skipif(not shutil.which("npm"), reason="npm is missing: install Node 18 or newer"),
]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def fleet(state: Path) -> Iterator[Fleet]:
    with ostler.local(slots=2, state_dir=state) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def program(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The example, compiled against what this hub says of itself: a type that does not fit is an error here."""
    folder = tmp_path_factory.mktemp("typescript")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules", "build"))
    (folder / "openapi.json").write_bytes(fleet.hub.description())
    for command in (["npm", "ci", "--silent"], ["npm", "run", "generate"], ["npm", "run", "build"]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return ["node", str(folder / "build" / "main.js")]


def run(program: list[str], fleet: Fleet, token: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OSTLER_HUB": fleet.url, "OSTLER_TOKEN": token}
    return subprocess.run([*program, *command], env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def token(state: Path, fleet: Fleet) -> str:
    return (state / "admin.token").read_text().strip()


def test_a_job_is_submitted_waited_for_and_its_log_read(program: list[str], fleet: Fleet, token: str) -> None:
    done = run(program, fleet, token, "sh", "-c", "echo 42")
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert "succeeded on local-0" in done.stderr


def test_a_job_that_fails_gives_its_exit_code_and_its_reason(program: list[str], fleet: Fleet, token: str) -> None:
    done = run(program, fleet, token, "sh", "-c", "echo oh; exit 3")
    assert (done.returncode, done.stdout) == (3, "oh\n")
    assert "failed" in done.stderr


def test_a_refusal_is_the_hubs_own_sentence(program: list[str], fleet: Fleet, token: str) -> None:
    done = run(program, fleet, token)
    assert done.returncode == 2
    assert "command: must name a program" in done.stderr
    assert run(program, fleet, "nonsense", "true").returncode == 4
