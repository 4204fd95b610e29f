"""Training runs of a manifest: the second kind of work. The queue follows the file `manifest.toml`."""

import json
from pathlib import Path

from examples.demo.board import Row
from examples.demo.expectations import Expectation
from examples.demo.progress import Document, Progress

MANIFEST = Path(__file__).with_name("manifest.toml")
SWEEP = "line-{rate}"
RUNS = 3
BEST = "line-0.3"
HOSTS = ("small-gpu", "mac", "cpu")
"""The manifest keeps these runs off the big box."""


class Training:
    """Applies the manifest, applies it again when its runs have ended, and compares."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._runs: list[str] = []
        self._again: Document = {}

    def apply(self) -> None:
        changes = self._apply()
        self._runs = [one["job_id"] for one in changes["jobs"]]
        self._progress.say(f"applied a manifest: {changes['inserted']} training runs of one sweep")

    def apply_again(self) -> None:
        self._progress.wait_until(lambda: self._progress.have_ended(self._runs), "the training runs to end")
        self._again = self._apply()
        self._progress.say(f"applied the manifest again: {self._again['unchanged']} runs unchanged")

    def compare(self) -> list[Row]:
        what = "a run with a loss, not on the big box"
        rows = [
            Expectation(run, what, workers=HOSTS, check=check_loss).compare(self._progress.job(run))
            for run in self._runs
        ]
        best = self._progress.hub.hub.sweep(SWEEP)["jobs"][0]
        found = f"{best['name']}, loss {best['metrics'].get('loss')}"
        problem = "" if best["name"] == BEST else f"should be {BEST}"
        unchanged = self._again["unchanged"]
        return [
            *rows,
            Row(SWEEP, f"{BEST} has the smallest loss", found, problem),
            Row(
                "apply",
                "a second apply changes nothing",
                f"{unchanged} unchanged",
                "" if unchanged == RUNS else f"should be {RUNS}",
            ),
        ]

    def _apply(self) -> Document:
        changes: Document = json.loads(self._progress.run_command("apply", str(MANIFEST), "--json"))
        return changes


def check_loss(document: Document) -> str:
    return "" if "loss" in document["metrics"] else f"its metrics are {document['metrics']}"
