"""Data, models and their files: all of the trainer that needs scikit-learn."""

import json
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sklearn
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier

if TYPE_CHECKING:
    from trainer import Progress

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Settings = dict[str, Any]
Stages = list[dict[str, float]]

WRITERS = (0, 130, 256, 386, 516, 646, 776, 915, 1029, 1157, 1287, 1415, 1545, 1667, 1797)
"""Where another writer's digits begin, and the end: the samples stand in the order in which they were collected."""
WRITERS_HELD_OUT = 4
SHARE_HELD_OUT = 0.25
ROUNDS_PER_STAGE = 5


def train(settings: Settings, out: Path, progress: "Progress", checkpoints: Path | None) -> dict[str, Any]:
    """Fit, write `model.npz`, and report what the file makes of the samples that were held out."""
    split = split_of(settings)
    if settings["model"] == "gbt":
        arrays = fit_gbt(settings, split, progress)
    else:
        arrays = fit_mlp(settings, split, progress, Checkpoint(checkpoints, settings))
    np.savez(out / "model.npz", allow_pickle=False, **arrays)
    with np.load(out / "model.npz", allow_pickle=False) as file:
        correct = predicted(dict(file), split.test_x) == split.test_y
    accuracy = float(correct.mean())
    if accuracy != progress.stages[-1]["accuracy"]:
        raise RuntimeError(
            f"model.npz is right about {accuracy}, but the model that was fitted is not: {progress.stages[-1]}"
        )
    low, high = interval(correct, settings["n_resamples"], settings["seed"])
    progress.tell({"accuracy": accuracy, "accuracy_low": low, "accuracy_high": high})
    samples = {"train": len(split.train_y), "test": len(split.test_y)}
    return {**settings, "samples": samples, "accuracy": accuracy, "interval": [low, high], **versions()}


def versions() -> dict[str, str]:
    return {"numpy": np.__version__, "scikit_learn": sklearn.__version__}


# What is trained on, and what is held out


class Split(NamedTuple):
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def split_of(settings: Settings) -> Split:
    load = {"digits": load_digits, "cancer": load_breast_cancer}[settings["data"]]
    x, y = load(return_X_y=True)
    test = np.zeros(len(y), dtype=bool)
    test[held_out(settings, len(y))] = True
    return Split(x[~test], y[~test], x[test], y[test])


def held_out(settings: Settings, samples: int) -> Array:
    chance = np.random.default_rng(settings["seed"])
    count = round(samples * SHARE_HELD_OUT)
    if settings["mode"] == "optimistic":
        return chance.permutation(samples)[:count]
    if settings["split_recipe"] == "tail":
        return np.arange(samples - count, samples)
    if settings["data"] != "digits":
        raise SystemExit(f"the samples of {settings['data']} have no writers; take --split-recipe tail")
    writers = chance.permutation(len(WRITERS) - 1)[:WRITERS_HELD_OUT]
    return np.concatenate([np.arange(WRITERS[writer], WRITERS[writer + 1]) for writer in writers])


def interval(correct: Array, resamples: int, seed: int) -> tuple[float, float]:
    """Between which bounds the accuracy of 95 of 100 bootstrap resamples lies; without resamples it is a point."""
    if resamples <= 0:
        return float(correct.mean()), float(correct.mean())
    drawn = np.random.default_rng(seed).integers(0, len(correct), (resamples, len(correct)))
    low, high = np.percentile(correct[drawn].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def judged(model: Any, x: Array, y: Array) -> dict[str, float]:
    chances = model.predict_proba(x)
    right = model.classes_[chances.argmax(axis=1)] == y
    return {"loss": float(log_loss(y, chances, labels=model.classes_)), "accuracy": float(right.mean())}


# The models


def fit_gbt(settings: Settings, split: Split, progress: "Progress") -> Arrays:
    hyper = settings["hyper"]
    model = HistGradientBoostingClassifier(
        learning_rate=hyper["lr"],
        max_depth=hyper["depth"],
        max_features=hyper["features"],
        monotonic_cst=[-1] * split.train_x.shape[1] if hyper["monotone"] else None,
        early_stopping=False,
        warm_start=True,
        random_state=settings["seed"],
    )
    rounds = hyper["rounds"]
    for done in [*range(ROUNDS_PER_STAGE, rounds, ROUNDS_PER_STAGE), rounds]:
        model.set_params(max_iter=done).fit(split.train_x, split.train_y)
        progress.tell({"round": done, **judged(model, split.test_x, split.test_y)})
    return trees_of(model)


def fit_mlp(settings: Settings, split: Split, progress: "Progress", checkpoint: "Checkpoint") -> Arrays:
    hyper, seed = settings["hyper"], settings["seed"]
    mean, spread = split.train_x.mean(axis=0), split.train_x.std(axis=0)
    spread[spread == 0] = 1.0
    train_x, test_x = (split.train_x - mean) / spread, (split.test_x - mean) / spread
    model = MLPClassifier(
        hidden_layer_sizes=(hyper["width"],),
        learning_rate_init=hyper["lr"],
        batch_size=hyper["batch"],
        alpha=hyper["decay"],
        shuffle=False,
        random_state=seed,
    )
    if kept := checkpoint.load():
        model, stages = kept
        progress.restore(stages)
        print(f"goes on after epoch {len(stages)}", flush=True)
    for epoch in range(len(progress.stages) + 1, hyper["epochs"] + 1):
        # The epoch's own number seeds its order, so that the state of a generator need not be kept.
        order = np.random.default_rng([seed, epoch]).permutation(len(train_x))
        model.partial_fit(train_x[order], split.train_y[order], classes=np.unique(split.train_y))
        stage = {"epoch": epoch, **judged(model, test_x, split.test_y)}
        checkpoint.save(model, [*progress.stages, stage])
        progress.tell(stage)
    layers = {f"weights{n}": layer for n, layer in enumerate(model.coefs_)}
    layers |= {f"bias{n}": layer for n, layer in enumerate(model.intercepts_)}
    return {"classes": model.classes_, "mean": mean, "spread": spread, **layers}


class Checkpoint:
    """The state of a run after its last whole epoch: one file, replaced as a whole; without a folder, nothing."""

    def __init__(self, folder: Path | None, settings: Settings) -> None:
        self._file = folder / "epoch.state" if folder else None
        # A state pickled under other versions may not load, and one of other settings would not give the same model.
        self._header = json.dumps({**settings, **versions()}).encode() + b"\n"

    def load(self) -> tuple[MLPClassifier, Stages] | None:
        if self._file is None or not self._file.exists():
            return None
        with self._file.open("rb") as file:
            if file.readline() != self._header:
                return None
            kept: tuple[MLPClassifier, Stages] = pickle.load(file)
            return kept

    def save(self, model: MLPClassifier, stages: Stages) -> None:
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(self._header)
            pickle.dump((model, stages), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._file)


# The file: plain arrays, which need no scikit-learn to predict with, and whose bytes depend on nothing but the model


def trees_of(model: HistGradientBoostingClassifier) -> Arrays:
    """All trees behind one another, children by their place in the whole; `roots` has a row per round."""
    rounds = [[tree.nodes for tree in trees] for trees in model._predictors]
    sizes = [len(nodes) for trees in rounds for nodes in trees]
    starts = np.cumsum([0, *sizes[:-1]])
    nodes = np.concatenate([nodes for trees in rounds for nodes in trees])
    shift = np.repeat(starts, sizes)
    return {
        "classes": model.classes_,
        "baseline": model._baseline_prediction.ravel(),
        "roots": starts.reshape(len(rounds), -1),
        "feature": nodes["feature_idx"].copy(),
        "threshold": nodes["num_threshold"].copy(),
        "left": nodes["left"] + shift,
        "right": nodes["right"] + shift,
        "value": nodes["value"].copy(),
        "is_leaf": nodes["is_leaf"].astype(bool),
    }


def predicted(arrays: Arrays, x: Array) -> Array:
    scores = tree_scores(arrays, x) if "roots" in arrays else layer_scores(arrays, x)
    best = scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(int)
    classes: Array = arrays["classes"][best]
    return classes


def tree_scores(arrays: Arrays, x: Array) -> Array:
    scores = np.tile(arrays["baseline"], (len(x), 1))
    samples = np.arange(len(x))
    for roots in arrays["roots"]:
        for output, root in enumerate(roots):
            at = np.full(len(x), root)
            while not (ended := arrays["is_leaf"][at]).all():
                goes_left = x[samples, arrays["feature"][at]] <= arrays["threshold"][at]
                at = np.where(ended, at, np.where(goes_left, arrays["left"][at], arrays["right"][at]))
            scores[:, output] += arrays["value"][at]
    return scores


def layer_scores(arrays: Arrays, x: Array) -> Array:
    hidden = (x - arrays["mean"]) / arrays["spread"]
    hidden = np.maximum(hidden @ arrays["weights0"] + arrays["bias0"], 0)
    scores: Array = hidden @ arrays["weights1"] + arrays["bias1"]
    return scores
