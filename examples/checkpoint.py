"""Checkpoints: a training loop that goes on where its last attempt ended, on whichever machine that is.

    ostler run --snapshot examples --retries 1 -- python checkpoint.py --stumble 30

All it knows of Ostler are two folders. What is in `$OSTLER_CHECKPOINT` is brought to the hub while it runs, and to the
machine of the next attempt; what is in `$OSTLER_OUT` at the end is its artifact. `--stumble 30` makes the first attempt
fail after 30 steps, as a machine that is switched off would: the second goes on from there. With PyTorch, the state is
`{"step": …, "model": model.state_dict(), "optimizer": optimizer.state_dict()}` and `torch.save` writes it.
"""

import argparse
import json
import os
import random
from pathlib import Path
from typing import Any

KEPT = Path(os.environ.get("OSTLER_CHECKPOINT", ".")) / "state.json"
OUT = Path(os.environ.get("OSTLER_OUT", "."))


def load() -> dict[str, Any]:
    if KEPT.exists():
        state: dict[str, Any] = json.loads(KEPT.read_text())
        print(f"goes on after step {state['step']}", flush=True)
        return state
    print("begins", flush=True)
    return {"step": 0, "slope": 0.0}


def save(state: dict[str, Any]) -> None:
    """Under another name first: whoever is stopped in the middle leaves the last one whole."""
    unfinished = KEPT.with_suffix(".tmp")
    unfinished.write_text(json.dumps(state))
    unfinished.replace(KEPT)


def train(state: dict[str, Any], steps: int, stumble: int) -> None:
    """A line through noisy points, y = 3x. Each step draws its own, so that a run that goes on sees the same ones."""
    while state["step"] < steps:
        draw = random.Random(state["step"])
        x = draw.uniform(-1, 1)
        error = state["slope"] * x - (3 * x + draw.gauss(0, 0.01))
        state["slope"] -= 0.5 * error * x
        state["step"] += 1
        if state["step"] % 10 == 0:
            save(state)
            print(f"step {state['step']}: slope {state['slope']:.3f}", flush=True)
        if state["step"] == stumble:
            raise SystemExit("stumbles, as it was told to")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--stumble", type=int, default=0)
    given = options.parse_args()
    state = load()
    train(state, given.steps, given.stumble if state["step"] == 0 else 0)
    (OUT / "metrics.jsonl").write_text(json.dumps({"step": state["step"], "slope": state["slope"]}) + "\n")
    print(f"done: slope {state['slope']:.2f}")


if __name__ == "__main__":
    main()
