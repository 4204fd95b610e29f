"""The same worlds over the plain core and over the compiled one: all that either was told and answered must be equal.

python compiled/same.py [how many worlds]          after `make compiled`
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILED = ROOT / "build" / "compiled"
WORLDS = 100
TRACES = """
import sys
import ostler.core.fleet
from tests.sim.test_campaign import traced
print(ostler.core.fleet.__file__.endswith(".so"))
for seed in range(int(sys.argv[1])):
    print(seed, traced(seed))
"""


def traces(path: Path, worlds: int) -> list[str]:
    """The first line says whether it was the compiled core."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join((str(path), str(ROOT)))}
    argv = [sys.executable, "-c", TRACES, str(worlds)]
    return subprocess.run(argv, env=environ, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def main(worlds: int = WORLDS) -> int:
    plain, compiled = traces(ROOT / "src", worlds), traces(COMPILED, worlds)
    if (plain[0], compiled[0]) != ("False", "True"):
        print("same: build/compiled has no compiled core; make one: make compiled", file=sys.stderr)
        return 2
    differ = [one.split()[0] for one, other in zip(plain[1:], compiled[1:], strict=True) if one != other]
    if differ:
        print(f"same: {len(differ)} of {worlds} worlds differ: those of the seeds {', '.join(differ[:10])}")
        return 1
    print(f"same: {worlds} worlds, every event and every answer")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
