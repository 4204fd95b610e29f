"""The small examples of examples/README.md, run as that page says, against one fleet of two workers."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGE = (EXAMPLES / "README.md").read_text()
SMALL = (
    "commands.sh",
    "functions.py",
    "map.py",
    "pipeline.sh",
    "checkpoint.py",
    "sweep/",
    "service.py",
    "gang/allreduce.py",
)
OSTLER = [sys.executable, "-m", "ostler"]
OFFER = "cpu_count = 2\nmemory_gb = 4\n"
PATIENCE_S = 60.0
pytestmark = pytest.mark.timeout(300)


class Fleet:
    """A hub with the gateway's example models, and two workers that find the sweep's program."""

    def __init__(self, folder: Path) -> None:
        self.state, self.folder = folder / "state", folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OSTLER_")}
        beside = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
        where = [str(EXAMPLES / "sweep"), *kept.get("PYTHONPATH", "").split(os.pathsep)]
        self.env = {**kept, "PATH": beside, "OSTLER_STATE_DIR": str(self.state), "NO_COLOR": "1", "PWD": str(ROOT)}
        self.env["PYTHONPATH"] = os.pathsep.join(part for part in where if part)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        config = EXAMPLES / "models" / "ostler.toml"
        self._spawn(
            "hub", "hub", "--config", str(config), "--port", "0", "--gateway-port", "0", "--log-level", "warning"
        )
        until(lambda: (self.state / "hub.url").exists(), "the hub listens")
        (self.folder / "offer.toml").write_text(OFFER)
        for name in ("desk", "loft"):
            self._spawn(
                name, "worker", "--name", name, "--offer", str(self.folder / "offer.toml"), "--drain-seconds", "0.1"
            )
        until(lambda: len(self.asked("/v1/workers")["workers"]) == 2, "both workers are there")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(PATIENCE_S)

    def run(self, command: str) -> str:
        """The command as it stands on the page, at the root of the checkout."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def asked(self, path: str) -> Any:
        url, token = ((self.state / name).read_text().strip() for name in ("hub.url", "admin.token"))
        request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(shlex.join(["ostler", *arguments, "--json"])))

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen([*OSTLER, *arguments], cwd=ROOT, env=self.env, stdout=log, stderr=log)
            )


def until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, f"{PATIENCE_S:.0f} s are over before {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


def told(name: str) -> str:
    """The command that the page gives for this example."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| [{name}]"))
    return re.findall(r"`([^`]+)`", row)[-1]


def test_every_small_example_is_on_the_page_and_run_here() -> None:
    listed = re.findall(r"^\| \[([^\]]+)\]", PAGE, re.MULTILINE)
    assert set(listed) == set(SMALL)
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert files <= set(SMALL)


def test_commands_run_and_leave_what_can_be_fetched(fleet: Fleet) -> None:
    said = fleet.run(told("commands.sh")).splitlines()
    assert said == ["hello from the fleet", "it left 10 numbers", "shard 2 of 3"]


def test_a_function_gives_its_value_and_its_exception(fleet: Fleet) -> None:
    said = fleet.run(told("functions.py"))
    assert "gives 332833500" in said
    assert "an exception comes back as itself: ZeroDivisionError: division by zero" in said


def test_a_map_gives_its_values_in_order(fleet: Fleet) -> None:
    said = fleet.run(told("map.py")).splitlines()
    assert said == ["4 horses, 4 thes", "1/0: ZeroDivisionError('division by zero')", "1/1: 1.0", "1/2: 0.5"]


def test_a_pipeline_keeps_its_order(fleet: Fleet, tmp_path: Path) -> None:
    command = told("pipeline.sh").replace("/tmp/pipeline", str(tmp_path / "shared"))
    assert fleet.run(command).splitlines()[-1] == "the sum is 500500"


def test_a_run_that_stumbled_goes_on_from_its_checkpoint_to_the_same_end(fleet: Fleet) -> None:
    interrupted = fleet.run(told("checkpoint.py"))
    assert "goes on after step 30" in interrupted
    whole = fleet.run("ostler run --snapshot examples -- python checkpoint.py")
    assert interrupted.splitlines()[-1] == whole.splitlines()[-1] == "done: slope 2.99"


def test_a_sweep_has_its_best_run_first(fleet: Fleet) -> None:
    fleet.run(told("sweep/"))
    runs = fleet.json("jobs")["jobs"]
    names = [run["name"] for run in runs if run["name"].startswith("line-")]
    assert len(names) == 6
    fleet.run(shlex.join(["ostler", "wait", *names]))
    assert "unchanged" in fleet.run(told("sweep/"))
    sweep = fleet.json("sweeps", "show", "line")
    assert sweep["best"]["hyper"] == {"rate": 0.3, "momentum": 0.0}
    table = fleet.run("ostler sweeps show line")
    assert table.index(sweep["best"]["name"]) < min(
        table.index(name) for name in names if name != sweep["best"]["name"]
    )


def test_a_service_answers_through_the_hub(fleet: Fleet) -> None:
    fleet.run(told("service.py"))

    def answers() -> bool:
        try:
            return bool(fleet.asked("/services/clock/time")["path"] == "/time")
        except OSError:
            return False

    until(answers, "the service answers")
    fleet.run("ostler cancel clock")


def test_a_gang_runs_on_both_machines_at_once(fleet: Fleet) -> None:
    job = fleet.run(told("gang/allreduce.py")).strip()
    fleet.run(f"ostler wait {job}")
    assert "rank 1 of 2: 2 went in, 3 came out" in fleet.run(f"ostler logs {job}.1")


def test_the_gateways_example_serves_a_model(fleet: Fleet) -> None:
    fleet.run("ostler models load pony --wait")
    states = {model["name"]: model["state"] for model in fleet.json("models")["models"]}
    assert states == {"pony": "ready", "mare": states["mare"], "cart-horse": states["cart-horse"]}
