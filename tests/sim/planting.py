"""Plant the bugs of tests/sim/planted one at a time into a copy of the code, and see who notices.

    python -m tests.sim.planting                    all of them, by a search over the seeds; writes what was found
    python -m tests.sim.planting --only 12 --seeds 200

A patch's head says which promise it breaks (`Promise:`), and who must notice it (`Caught by:`): the simulator in worlds
of the campaign, of the witness or of its claims, or named tests where the fault lies in what the simulator does not run. `Harmless:` says which other defence covers it; then
nobody may notice anything. A patch that does not apply any more fails: bugs rot loudly.
"""

import argparse
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import apsw  # noqa: F401  loaded once here, not once for each bug
import hypothesis  # noqa: F401
import msgspec  # noqa: F401
import numpy  # noqa: F401
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = Path(__file__).resolve().parent / "planted"
FOUND = FOLDER / "found.json"
TABLE = ROOT / "docs" / "planted-bugs.md"
SIMULATOR = "simulator"
TESTS, NOT_HERE = "tests", "not here"
CPU_S_OF_A_SEED = 10
"""Whatever takes longer than this has lost its way: that is noticed, too."""
SEARCHED = 300
"""Seeds, one after another."""
HARMLESS = 50
"""The same, of what is said to be harmless."""
MORE = 40
"""The same, where the recorded seed notices nothing any more: the simulator has changed since."""


class Rotten(Exception):
    """A patch cannot be applied any more, or its head says too little."""


class Trial(NamedTuple):
    """A kind of world, and its seed; or tests, which have none."""

    kind: str
    seed: int = 0


class Hunk(NamedTuple):
    file: str
    old: str
    new: str


class Plant(NamedTuple):
    name: str
    promise: str
    caught_by: str
    harmless: str
    hunks: list[Hunk]

    @property
    def kind(self) -> str:
        """Of the worlds in which it is looked for; "": it is looked for by tests."""
        who, _, kind = self.caught_by.partition(", ")
        return kind if who == SIMULATOR else ""


class Caught(NamedTuple):
    """By which trial, how many it took, and what was said."""

    trial: Trial
    tried: int
    told: str
    cpu_s: float


# Patches


def read_all(only: Iterable[str] = ()) -> list[Plant]:
    chosen = tuple(only)
    paths = sorted(FOLDER.glob("*.patch"))
    return [read(path) for path in paths if not chosen or path.name.startswith(chosen)]


def read(path: Path) -> Plant:
    head, begin, body = path.read_text().partition("--- a/")
    said = {name: text.strip() for name, _, text in (line.partition(":") for line in head.splitlines())}
    if not begin or not said.get("Promise") or not said.get("Caught by"):
        raise Rotten(f"{path.name} must say `Promise:` and `Caught by:`, and then be a unified diff of src/")
    return Plant(path.stem, said["Promise"], said["Caught by"], said.get("Harmless", ""), list(_hunks(begin + body)))


def _hunks(diff: str) -> Iterator[Hunk]:
    file, old, new = "", [""], [""]
    for line in [*diff.splitlines(keepends=True), "@@"]:
        if line.startswith(("--- a/", "+++ b/", "@@")):
            if old != [""]:
                yield Hunk(file, "".join(old), "".join(new))
                old, new = [""], [""]
            file = line.removeprefix("+++ b/").strip() if line.startswith("+++ b/") else file
            continue
        if line[:1] in (" ", "-"):
            old.append(line[1:])
        if line[:1] in (" ", "+"):
            new.append(line[1:])


def patched(plant: Plant, source: Path) -> dict[Path, str]:
    """The files that it changes, as they are to be. Lines may have moved; they must be there, and only once."""
    texts: dict[Path, str] = {}
    for hunk in plant.hunks:
        path = source.parent / hunk.file
        text = texts.get(path) or path.read_text()
        if text.count(hunk.old) != 1:
            found = "more than once" if hunk.old in text else "no more"
            raise Rotten(
                f"{plant.name} does not apply: what it changes is found {found} in {hunk.file}; renew the patch"
            )
        texts[path] = text.replace(hunk.old, hunk.new)
    return texts


@contextmanager
def field() -> Iterator[Path]:
    """A copy of src/ in which to plant."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)  # with the times of the files: what was compiled once stays so
        yield source


@contextmanager
def planted(plant: Plant, source: Path) -> Iterator[None]:
    texts = patched(plant, source)
    for path, text in texts.items():
        path.write_text(text)
    yield
    for path in texts:
        shutil.copy2(ROOT / path.relative_to(source.parent), path)


# Trials, each plant's in a process of its own


def witnessed(kind: str) -> Callable[[int], object]:
    """One world of this kind, by its seed. Loaded late: where it is loaded, the bug is planted already."""
    from tests.sim import witness

    from ostler.sim import campaign

    worlds: dict[str, Callable[[int], object]] = {
        "campaign": campaign.run_seed,
        "witness": witness.run,
        "claims": witness.run_claims,
    }
    return worlds[kind]


def in_turn(plant: Plant, seeds: int) -> Iterator[Trial]:
    return (Trial(plant.kind, seed) for seed in range(seeds))


def apart(source: Path, work: Callable[[], Any]) -> Any:
    """What this comes to in a process that has the planted code and nothing of the sound one."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            _use(source)
            answer = json.dumps(work())
            os.write(writing, answer.encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as answers:
        told = answers.read()
    _, status = os.waitpid(child, 0)
    if status or not told:
        raise RuntimeError(f"a trial ended with {status}; what it said is above")
    return json.loads(told)


def _use(source: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ostler", "tests")]:
        del sys.modules[name]
    sys.path[:0] = [str(source), str(ROOT)]
    sys.dont_write_bytecode = True
    os.environ["PYTHONPATH"] = os.pathsep.join([str(source), str(ROOT)])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def simulated(trials: Iterable[Trial]) -> tuple[Trial, int, str] | None:
    """The first trial in which something was noticed, how many it took, and what was said."""

    def lost_its_way(*_: object) -> None:
        raise TimeoutError(f"it did not end within {CPU_S_OF_A_SEED} s of CPU time")

    signal.signal(signal.SIGPROF, lost_its_way)
    for number, trial in enumerate(trials, 1):
        run = witnessed(trial.kind)
        signal.setitimer(signal.ITIMER_PROF, CPU_S_OF_A_SEED)
        try:
            run(trial.seed)
        except Exception as error:
            return trial, number, f"{type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return None


class Seen:
    """Of the tests that ran: how each came out."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.skipped:
            self.outcomes.append(report.outcome)


def tested(tests: str) -> tuple[Trial, int, str] | None:
    os.chdir(ROOT)
    seen, said = Seen(), io.StringIO()
    with redirect_stdout(said):
        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests.split()], [seen])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise Rotten(f"{tests} could not be run: {said.getvalue()}")
    if "failed" in seen.outcomes:
        return Trial(TESTS), 1, "they fail"
    return (Trial(NOT_HERE), 1, "skipped") if "skipped" in seen.outcomes else None


def noticed(plant: Plant, source: Path, trials: Iterable[Trial]) -> Caught | None:
    """Who notices the bug; None: nobody does."""
    begun = time.process_time() + sum(os.times()[2:4])
    with planted(plant, source):
        found = apart(source, lambda: simulated(trials) if plant.kind else tested(plant.caught_by))
    spent = time.process_time() + sum(os.times()[2:4]) - begun
    if found is None:
        return None
    (kind, seed), tried, told = found
    return Caught(Trial(kind, seed), tried, told, round(spent, 2))


# What was found


def recorded() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    return found


def recorded_first(plant: Plant, then: int) -> Iterator[Trial]:
    """The trial that has noticed it, and then so many seeds of each kind."""
    line = recorded().get(plant.name, {})
    first = [Trial(plant.kind, line["seed"])] if plant.kind and line.get("kind") == plant.kind else []
    return chain(first, in_turn(plant, then))


def search(plants: list[Plant], seeds: int) -> list[str]:
    """Look for each; keep what was found. What is wrong is returned."""
    wrong = []
    with field() as source:
        for plant in plants:
            most = min(seeds, HARMLESS) if plant.harmless else seeds
            caught = noticed(plant, source, in_turn(plant, most))
            print(f"{plant.name}: {_told(plant, caught)}", flush=True)
            if caught is None or caught.trial.kind != NOT_HERE:
                record(plant, caught, most)
            if (caught is None) != bool(plant.harmless):
                wrong.append(f"{plant.name}: {'it is said to be harmless' if caught else 'nobody noticed it'}")
            if caught and plant.kind and (sound := sound_too(source, caught.trial)):
                wrong.append(f"{plant.name}: so does the sound code at {caught.trial}: {sound}")
    write_table()
    return wrong


def record(plant: Plant, caught: Caught | None, seeds: int) -> None:
    found = recorded() | {plant.name: _line(plant, caught, seeds)}
    there = {path.stem for path in FOLDER.glob("*.patch")}
    FOUND.write_text(json.dumps({name: found[name] for name in sorted(found) if name in there}, indent=1) + "\n")


def sound_too(source: Path, trial: Trial) -> str:
    """What the code without a planted bug says at the same trial: nothing, or the trial proves nothing."""
    found = apart(source, lambda: simulated([trial]))
    return found[2] if found else ""


def _line(plant: Plant, caught: Caught | None, seeds: int) -> dict[str, Any]:
    if caught is None:
        return {"kind": "", "tried": seeds}
    where = {"kind": caught.trial.kind, "seed": caught.trial.seed, "tried": caught.tried}
    return where | {"cpu_s": caught.cpu_s, "told": caught.told[:160]}


def _told(plant: Plant, caught: Caught | None) -> str:
    if caught is None:
        return "harmless" if plant.harmless else "NOT NOTICED"
    return f"{caught.trial.kind} {caught.trial.seed}, seed {caught.tried}, {caught.cpu_s} s: {caught.told[:110]}"


def write_table() -> None:
    known = recorded()
    rows = [_row(plant, known[plant.name]) for plant in read_all() if plant.name in known]
    caught = sum(bool(line["kind"]) for line in known.values())
    TABLE.write_text(HEAD.format(count=len(rows), caught=caught) + "".join(rows))


def _row(plant: Plant, line: dict[str, Any]) -> str:
    if not line["kind"]:
        took, how = f"none of {line['tried']}", f"harmless: {plant.harmless}"
    elif line["kind"] == TESTS:
        file, _, test = plant.caught_by.rpartition("/")[2].partition("::")
        took, how = TESTS, f"`{file}` {test.replace('_', ' ')}"
    else:
        took, how = str(line["tried"]), line["told"].replace("|", "/")
    return f"| {plant.name} | {plant.promise} | {took} | {how} |\n"


HEAD = """# Planted bugs

A simulator that finds nothing proves nothing. In `tests/sim/planted` there are {count} small defects of the core, the worker,
the hub's loop and the ledger, each kept as a patch with the promise that it breaks; {caught} of them are noticed, and of the
others it is said which other defence makes them harmless. `make planted` plants each into a copy of the code, takes one seed
after another (worlds of the campaign, worlds where the ledger is held against memory, worlds of machines that only claim) until one notices it, looks that the same seed finds nothing without the bug, and writes this page. `make test` does the same with the seed that is recorded here.

| planted | the promise that it breaks | worlds it took | how it showed |
|---|---|---|---|
"""


def look_again(plants: list[Plant]) -> list[str]:
    """By what is recorded, and a little more. What is wrong is returned."""
    wrong = []
    with field() as source:
        for plant in plants:
            caught = noticed(plant, source, recorded_first(plant, MORE))
            print(f"{plant.name}: {_told(plant, caught)}", flush=True)
            if caught is None:
                wrong.append(f"{plant.name}: nobody noticed it; search for a seed with `make planted`")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant bugs, and see who notices.")
    parser.add_argument("--only", nargs="*", default=[], help="how the names of those begin that are planted")
    parser.add_argument("--seeds", type=int, default=SEARCHED, help="how many, one after another")
    parser.add_argument(
        "--recorded", action="store_true", help="look with the seeds that are recorded, and write nothing"
    )
    options = parser.parse_args()
    plants = read_all(options.only)
    wrong = look_again(plants) if options.recorded else search(plants, options.seeds)
    print("\n".join(wrong) or "each was noticed that is not harmless")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
