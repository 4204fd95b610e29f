"""`python -m ostler.sim`: a campaign of the simulator over many seeds, or one of them once more."""

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from ostler.sim.campaign import run_plan, run_seed
from ostler.sim.drawing import drawn
from ostler.sim.record import Broken, Record
from ostler.sim.shrink import Regression, keep, shrunk, violation_of
from ostler.sim.world import CHECK_EVERY

TOGETHER = 25
"""Seeds between two looks at how far it is."""
TELL_EVERY_S = 30.0
REGRESSIONS = Path("tests/sim/regressions")


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    if options.seed is not None:
        run_seed(options.seed, check_every=1 if options.strict else CHECK_EVERY)
        print(f"seed {options.seed}: no violation")
        return 0
    record = _run_all(options)
    print(record.words())
    for broken in record.broken:
        print(f"seed {broken.seed}: {broken.violation}")
        print(f"  again with: python -m ostler.sim --seed {broken.seed}")
        if options.shrink:
            print(f"  smaller: {_reduce(broken, options.regressions)}")
    return 1 if record.broken else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ostler.sim", description="Run the simulator over many seeds.")
    parser.add_argument("--seed", type=int, help="one seed only; a violation is raised")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=1, help="how many run side by side")
    parser.add_argument("--strict", action="store_true", help="check everything after every event")
    parser.add_argument("--record", type=Path, help="a JSON file for what it came to, written as it goes")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first violation")
    parser.add_argument("--shrink", action="store_true", help="reduce what broke something to a small plan and keep it")
    parser.add_argument("--regressions", type=Path, default=REGRESSIONS, help="where")
    return parser.parse_args(argv)


def _run_all(options: argparse.Namespace) -> Record:
    whole = Record(commit=_commit(), code=_code(), first_seed=options.start)
    shares = [range(one, min(one + TOGETHER, options.start + options.seeds)) for one in _begins(options)]
    told = time.monotonic()
    for part in _done(shares, options):
        whole.merge(part)
        if time.monotonic() - told > TELL_EVERY_S:
            told = time.monotonic()
            print(whole.words(), flush=True)
            _write(whole, options.record)
        if whole.broken and not options.go_on:
            break
    _write(whole, options.record)
    return whole


def _begins(options: argparse.Namespace) -> range:
    return range(options.start, options.start + options.seeds, TOGETHER)


def _done(shares: list[range], options: argparse.Namespace) -> Iterator[Record]:
    work = partial(run_some, check_every=1 if options.strict else CHECK_EVERY, go_on=options.go_on)
    if options.processes == 1:
        yield from map(work, shares)
        return
    with ProcessPoolExecutor(options.processes) as pool:
        yield from pool.map(work, shares)
        pool.shutdown(cancel_futures=True)


def run_some(seeds: Iterable[int], check_every: int = CHECK_EVERY, *, go_on: bool = False) -> Record:
    record, begun = Record(), time.process_time()
    for seed in seeds:
        try:
            record.add(run_seed(seed, check_every=check_every))
        except Exception as error:
            record.seeds += 1
            record.broken.append(Broken(seed, f"{type(error).__name__}: {error}"))
            if not go_on:
                break
    record.cpu_s = time.process_time() - begun
    return record


def _reduce(broken: Broken, folder: Path) -> Path:
    small = shrunk(drawn(broken.seed))
    return keep(Regression(f"seed {broken.seed}", violation_of(small, run_plan), small), folder)


def _write(record: Record, path: Path | None) -> None:
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def _commit() -> str:
    told = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip()


def _code() -> str:
    """A digest of all that ran, and of all that lies beside it: a tree may differ from its commit."""
    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
