"""Two hubs on one PostgreSQL ledger, of which the leader dies, stands still or leaves."""

import re
import subprocess
import sys

from chaos.trial import Ground, Trial
from chaos.wire import ROOT

ROUNDS = 8
FAULT = re.compile(r"(kill -9|SIGSTOP|SIGTERM) +(\d+) times: followed after ([\d.]+) s, at most ([\d.]+) s")


class NoServer(Exception):
    """No PostgreSQL server can be started here."""


def leaders(ground: Ground, trial: Trial) -> None:
    """`python -m benchmarks.failover`: no acknowledged job is lost, no long task begins twice, and nothing that a
    former leader was asked counts."""
    from tests.ledger.server import installed

    if installed() is None:
        raise NoServer("no PostgreSQL server is installed")
    command = [sys.executable, "-m", "benchmarks.failover", "--rounds", str(ground.times(ROUNDS))]
    done = subprocess.run([*command, "--seed", str(ground.seed)], cwd=ROOT, capture_output=True, text=True, timeout=600)
    for fault, times, median_s, longest_s in FAULT.findall(done.stdout):
        trial.count(f"{fault} of the leader", int(times))
        trial.figures[f"followed after {fault}, s"] = float(median_s)
        trial.figures[f"followed after {fault}, s at most"] = float(longest_s)
    said = (done.stdout + done.stderr).strip().splitlines()[-12:]
    trial.promise("the campaign is sound", ground.times(ROUNDS), [] if done.returncode == 0 else [" / ".join(said)])
