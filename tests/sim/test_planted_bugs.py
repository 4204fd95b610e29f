"""A simulator that finds nothing proves nothing: bugs are planted into the code, and each must be noticed.

Each is looked for with the seed that noticed it when `make planted` was run, and then, should the simulator have
changed since, with some others. That the same seeds find nothing without a bug is what `make planted` makes sure of.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.sim.planting import FOLDER, ROOT, Plant, Rotten, patched, read, read_all, recorded

SHARES = 4
ENOUGH = 40
PLANTS = read_all()


@pytest.mark.long
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.timeout(900)
def test_every_planted_bug_is_noticed(share: int) -> None:
    names = [plant.name for plant in PLANTS if not plant.harmless][share::SHARES]
    command = [sys.executable, "-m", "tests.sim.planting", "--recorded", "--only", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_bug_can_still_be_planted() -> None:
    rotten = [told for plant in PLANTS if (told := what_is_rotten(plant))]
    assert rotten == []


def what_is_rotten(plant: Plant) -> str:
    try:
        for path, text in patched(plant, ROOT / "src").items():
            compile(text, str(path), "exec")
    except (Rotten, SyntaxError) as error:
        return f"{plant.name}: {error}"
    return ""


def test_at_least_forty_are_noticed_and_what_is_recorded_is_what_is_there() -> None:
    found = recorded()
    assert set(found) == {plant.name for plant in PLANTS}
    assert sum(bool(line["kind"]) for line in found.values()) >= ENOUGH
    assert [plant.name for plant in PLANTS if bool(found[plant.name]["kind"]) == bool(plant.harmless)] == []


def test_a_patch_that_does_not_fit_any_more_is_told(tmp_path: Path) -> None:
    text = next(FOLDER.glob("*.patch")).read_text()
    old = next(line for line in text.splitlines() if line.startswith("-") and not line.startswith("---"))
    (tmp_path / "x.patch").write_text(text.replace(old, old + "  # as it was once"))
    with pytest.raises(Rotten, match="renew the patch"):
        patched(read(tmp_path / "x.patch"), ROOT / "src")


def test_a_patch_that_says_nothing_is_told(tmp_path: Path) -> None:
    text = next(FOLDER.glob("*.patch")).read_text()
    (tmp_path / "x.patch").write_text(text[text.index("--- a/") :])
    with pytest.raises(Rotten, match="Promise"):
        read(tmp_path / "x.patch")
