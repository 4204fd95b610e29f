"""Many seeded random gateways. A failure prints the seed that repeats it: `python -m tests.gateway.core.campaign --seed N`."""

import argparse
import sys
import time

from tests.gateway.core.random_gateway import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the gateway's schedulers through many random sequences.")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    events, begun = 0, time.monotonic()
    for seed in seeds:
        try:
            events += run_seed(seed).events
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {error}")
            print(f"repeat it with: python -m tests.gateway.core.campaign --seed {seed}")
            if options.seed is not None:
                raise
            return 1
    spent = time.monotonic() - begun
    print(f"{len(seeds)} sequences, {events} events, {events / spent:.0f} events/s, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
