"""Trains one small model, the same bytes every time: `python -m trainer --model mlp --mode realistic --out DIR`.

`--out` gets `model.npz` (plain arrays), `metrics.jsonl` (one line a stage) and `report.json`; the stages are printed as
they come. In a folder named by $OSTLER_CHECKPOINT the MLP keeps its state after every epoch and goes on from there,
to the same bytes as if it had never been stopped.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

HYPER: dict[str, dict[str, Any]] = {
    "gbt": {"lr": 0.1, "depth": 4, "rounds": 30, "features": 1.0, "monotone": False},
    "mlp": {"lr": 0.003, "width": 32, "epochs": 40, "batch": 64, "decay": 0.0001},
}
"""What each model takes, and what it takes when nothing is said."""
COMMON = {"data": "digits", "split_recipe": "writer", "seed": 0, "n_resamples": 200}
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer",
        description="Train one small model. The same settings give the same bytes.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    run = parser.add_argument_group("the run")
    run.add_argument("--model", required=True, choices=tuple(HYPER))
    run.add_argument("--out", required=True, type=Path, metavar="DIR", help="where model and report are written")
    run.add_argument("--data", choices=("digits", "cancer"), help=told(COMMON["data"], "the data set"))
    run.add_argument(
        "--mode",
        required=True,
        choices=("realistic", "optimistic"),
        help="what is tested on: people or dates that training never saw, or samples drawn at random",
    )
    run.add_argument(
        "--split-recipe",
        choices=("writer", "tail"),
        help=told(COMMON["split_recipe"], "what 'realistic' holds out: some writers, or the samples recorded last"),
    )
    run.add_argument("--seed", type=int, help=told(COMMON["seed"], "of the split, and of the model's own chance"))
    run.add_argument("--n-resamples", type=int, help=told(COMMON["n_resamples"], "resamples behind the interval"))
    run.add_argument("--lr", type=float, help="learning rate (gbt: 0.1, mlp: 0.003)")
    trees = parser.add_argument_group("gbt: gradient-boosted trees")
    trees.add_argument("--depth", type=positive, help=told(HYPER["gbt"]["depth"], "of each tree"))
    trees.add_argument("--rounds", type=positive, help=told(HYPER["gbt"]["rounds"], "trees per class"))
    trees.add_argument("--features", type=float, help=told(HYPER["gbt"]["features"], "share looked at for each split"))
    trees.add_argument("--monotone", action="store_true", help="a larger feature never makes the second class likelier")
    layers = parser.add_argument_group("mlp: one hidden layer")
    layers.add_argument("--width", type=positive, help=told(HYPER["mlp"]["width"], "of the hidden layer"))
    layers.add_argument("--epochs", type=positive, help=told(HYPER["mlp"]["epochs"], "passes over the data"))
    layers.add_argument("--batch", type=positive, help=told(HYPER["mlp"]["batch"], "samples per step"))
    layers.add_argument("--decay", type=float, help=told(HYPER["mlp"]["decay"], "weight of the penalty"))
    return parser


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def told(default: object, what: str) -> str:
    return f"{what} ({default})"


def settings_of(arguments: Sequence[str] | None) -> tuple[dict[str, Any], Path]:
    """Everything that decides the outcome, and where to write it."""
    parser = command_line()
    given = vars(parser.parse_args(arguments))
    out: Path = given.pop("out")
    model, mode = given.pop("model"), given.pop("mode")
    settings = {"model": model, "mode": mode}
    settings |= {name: given.pop(name, default) for name, default in COMMON.items()}
    settings["hyper"] = {name: given.pop(name, default) for name, default in HYPER[model].items()}
    if given:
        others = ", ".join(f"--{name}" for name in given)
        parser.error(f"{others}: not for {model}, which takes {', '.join('--' + name for name in HYPER[model])}")
    return settings, out


class Progress:
    """The stages of a run: printed as they come, and kept in `metrics.jsonl`."""

    def __init__(self, file: IO[str]) -> None:
        self.stages: list[dict[str, float]] = []
        self._file = file

    def tell(self, stage: dict[str, float]) -> None:
        print(json.dumps(stage), flush=True)
        self.restore([stage])

    def restore(self, stages: list[dict[str, float]]) -> None:
        """Stages that an earlier attempt has told."""
        for stage in stages:
            self.stages.append(stage)
            print(json.dumps(stage), file=self._file, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    settings, out = settings_of(arguments)
    # The order in which threads add up decides the last bit of a sum; the libraries read this when they are loaded.
    os.environ.update(dict.fromkeys(THREADS, "1"))
    import fitting

    out.mkdir(parents=True, exist_ok=True)
    kept = os.environ.get("OSTLER_CHECKPOINT")
    with (out / "metrics.jsonl").open("w", newline="\n") as file:
        report = fitting.train(settings, out, Progress(file), Path(kept) if kept else None)
    with (out / "report.json").open("w", newline="\n") as file:
        json.dump(report, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main()
