"""A line through noisy points by gradient descent: an ordinary program with an ordinary command line.

What it writes to `--out` becomes the run's artifact, and the last numbers in `metrics.jsonl` its metrics.
"""

import argparse
import json
import random
from pathlib import Path

STEPS = 60


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rate", type=float, required=True)
    options.add_argument("--momentum", type=float, required=True)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    draw = random.Random(7)
    points = [(x / 20, 3 * x / 20 + 1 + draw.gauss(0, 0.05)) for x in range(-20, 21)]
    slope = bias = moved_slope = moved_bias = 0.0
    with (given.out / "metrics.jsonl").open("w") as metrics:
        for step in range(1, STEPS + 1):
            errors = [(slope * x + bias - y, x) for x, y in points]
            moved_slope = given.momentum * moved_slope - given.rate * sum(e * x for e, x in errors) / len(points)
            moved_bias = given.momentum * moved_bias - given.rate * sum(e for e, _ in errors) / len(points)
            slope, bias = slope + moved_slope, bias + moved_bias
            loss = sum(e * e for e, _ in errors) / len(points)
            metrics.write(json.dumps({"step": step, "loss": round(loss, 6)}) + "\n")
    (given.out / "line.json").write_text(json.dumps({"slope": slope, "bias": bias}))
    print(f"y = {slope:.3f} x + {bias:.3f}, loss {loss:.5f}")


if __name__ == "__main__":
    main()
