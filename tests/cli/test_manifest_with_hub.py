"""The commands of the training fleet against a real hub, a real worker and a real trainer."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process_fleet import OSTLER, TWO_A100, ProcessFleet, until

TRAINER = """
import argparse, json, pathlib
p = argparse.ArgumentParser()
p.add_argument("--model")
p.add_argument("--out", type=pathlib.Path)
p.add_argument("--lr", type=float)
p.add_argument("--width", type=int)
given = p.parse_args()
if given.lr > 1:
    raise ValueError("the loss is not finite")
loss = given.lr + 1 / given.width
(given.out / "metrics.jsonl").write_text(json.dumps({"val_loss": loss, "accuracy": 1 - loss}) + "\\n")
(given.out / "weights.txt").write_text(f"{loss}\\n")
"""
MANIFEST = """
[defaults]
command = ["PYTHON", "TRAINER", "--model", "{model}", "--out", "{out}", "{hyper...}"]
metric = "val_loss"
goal = "min"

[[jobs]]
name = "diverges"
model = "mlp"
hyper = { lr = 5.0, width = 64 }

[[jobs]]
name = "too-big"
model = "mlp"
min_ram_gib = 5000
hyper = { lr = 0.5, width = 64 }

[[sweeps]]
name = "mlp-{lr}-{width}"
model = "mlp"
grid = { lr = [0.1, 0.01], width = [64, 128] }
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    fleet = ProcessFleet(tmp_path_factory.mktemp("fleet"))
    (fleet.folder / "trainer.py").write_text(TRAINER)
    fleet.hub_options = ("--manifest", write(fleet, "fleet.toml", MANIFEST))
    try:
        fleet.start_hub()
        fleet.start_worker("box", offer=TWO_A100, drain_s=1)
        fleet.await_workers("box")
        yield fleet
    finally:
        fleet.close()


def write(fleet: ProcessFleet, name: str, text: str) -> str:
    path = fleet.folder / name
    path.write_text(text.replace("PYTHON", sys.executable).replace("TRAINER", str(fleet.folder / "trainer.py")))
    return str(path)


@pytest.fixture(scope="module")
def trained(fleet: ProcessFleet) -> list[str]:
    """The manifest's jobs, when all that can end have ended."""
    names = ["diverges", *(f"mlp-{lr}-{width}" for lr in ("0.1", "0.01") for width in (64, 128))]
    done = fleet.run("wait", *names, timeout=120)
    assert done.returncode == 1
    assert "diverges" in done.stderr
    return names


def test_an_apply_of_what_is_there_changes_nothing(fleet: ProcessFleet) -> None:
    done = fleet.run("apply", str(fleet.folder / "fleet.toml"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 inserted, 6 unchanged, 0 updated, 0 absent\n"


def test_a_plan_tells_what_would_change_and_where_it_could_run_and_changes_nothing(fleet: ProcessFleet) -> None:
    changed = MANIFEST.replace("5000", "4000") + '\n[[jobs]]\nname = "new"\nmodel = "gbt"\n'
    file = write(fleet, "planned.toml", changed)
    done = fleet.run("plan", file)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\+ inserted +new +○ pending .*box\n", done.stdout)
    assert re.search(r"~ updated +too-big +○ pending +min_ram_gib +\S*.*memory", done.stdout)
    assert re.search(r"\ntoo-big +min_ram_gib +5000 +4000\n", done.stdout)
    assert "1 inserted, 5 unchanged, 1 updated, 0 absent, if this were applied\n" in done.stdout
    found = fleet.json("plan", file)
    assert [job["workers"] for job in found["jobs"] if job["name"] == "new"] == [["box"]]
    assert fleet.run("show", "new").returncode == 5


def test_an_apply_inserts_updates_and_leaves_alone_what_is_absent(fleet: ProcessFleet) -> None:
    file = write(
        fleet,
        "other.toml",
        '[defaults]\ncommand = ["true"]\n[[jobs]]\nname = "other"\nmodel = "other"\nmin_ram_gib = 9000\n',
    )
    done = fleet.run("apply", file)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\+ inserted +other +[0-9a-f]{12}\n", done.stdout)
    assert re.search(r"– absent +too-big +[0-9a-f]{12}\n", done.stdout)
    write(fleet, "other.toml", Path(file).read_text() + "priority = 7\n")
    again = fleet.json("apply", file)
    assert [again[kind] for kind in ("inserted", "unchanged", "updated")] == [0, 0, 1]
    assert fleet.json("show", "other")["spec"]["priority"] == 7
    assert fleet.run("cancel", "other").returncode == 0


def test_reload_reads_the_hubs_own_manifest_again(fleet: ProcessFleet) -> None:
    write(fleet, "fleet.toml", MANIFEST.replace("5000", "6000"))
    done = fleet.run("reload")
    assert done.returncode == 0, done.stderr
    assert re.search(r"~ updated +too-big .* min_ram_gib\n", done.stdout)
    write(fleet, "fleet.toml", MANIFEST.replace("5000", '"much"'))
    bad = fleet.run("reload")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("fleet.toml:15: jobs[1].min_ram_gib: ")
    write(fleet, "fleet.toml", MANIFEST)
    assert fleet.run("reload", "--json").returncode == 0


def test_everything_that_is_wrong_with_a_manifest_is_told_a_line_each(fleet: ProcessFleet) -> None:
    wrong = MANIFEST.replace("name = ", "prioritty = 3\nname = ", 1).replace("lr = [0.1, 0.01]", "lr = 3")
    file = write(fleet, "wrong.toml", wrong)
    for command in (["apply"], ["apply", "--check"], ["apply", "--json"], ["plan"]):
        done = fleet.run(*command, file)
        assert (done.returncode, done.stdout) == (2, "")
        lines = done.stderr.splitlines()
        assert lines[0] == "wrong.toml:8: jobs[0].prioritty: unknown key 'prioritty'; did you mean 'priority'?"
        assert lines[1].startswith("wrong.toml:22: sweeps[0].grid.lr: ")
        assert len(lines) == 2


def test_what_is_no_toml_is_told_by_its_line(fleet: ProcessFleet) -> None:
    done = fleet.run("apply", write(fleet, "broken.toml", "[defaults]\ncommand = [\n"))
    assert done.returncode == 2
    assert re.match(r"broken\.toml:\d+: ", done.stderr)
    assert done.stderr.count("\n") == 1


def test_only_operators_may_apply(fleet: ProcessFleet) -> None:
    made = fleet.json("token", "create", "--role", "user", "--user", "ada")
    for command in (["apply", str(fleet.folder / "fleet.toml")], ["reload"]):
        done = fleet.run(*command, "--token", made["token"])
        assert (done.returncode, done.stdout) == (4, "")
        assert done.stderr.splitlines()[-1].startswith("ostler: a token of role user may not ")


def test_check_finds_hyper_keys_that_the_program_does_not_take_and_applies_nothing(fleet: ProcessFleet) -> None:
    file = write(
        fleet, "drift.toml", MANIFEST.replace("width = [64, 128]", "widht = [64, 128]").replace("-{width}", "")
    )
    done = fleet.run("apply", "--check", file)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"drift\.toml:18: jobs 'mlp-0\.1', 'mlp-0\.1', 'mlp-0\.01' and 1 more: hyper key 'widht': `\S+ \S+trainer\.py` "
        r"takes no --widht; did you mean --width\?\nnothing was applied\n",
        done.stderr,
    )
    told = fleet.run("apply", "--check", "--json", file)
    assert told.returncode == 1
    assert [one["key"] for one in json.loads(told.stdout)["check"]["drift"]] == ["widht"]
    assert {sweep["name"] for sweep in fleet.json("sweeps")["sweeps"]} == {"mlp-{lr}-{width}"}


def test_check_lets_through_what_fits_and_notes_what_could_not_be_asked(fleet: ProcessFleet) -> None:
    odd = '\n[[jobs]]\nname = "odd"\nmodel = "odd"\ncommand = ["no-such-program", "{hyper...}"]\nhyper = { lr = 1 }\n'
    done = fleet.run("apply", "--check", write(fleet, "checked.toml", MANIFEST + odd))
    assert done.returncode == 0
    assert done.stdout.endswith("1 inserted, 6 unchanged, 0 updated, 0 absent\n")
    assert re.search(r"^note: `no-such-program` could not be checked: its --help failed: ", done.stderr)
    assert done.stderr.count("\n") == 1
    again = fleet.json("apply", "--check", str(fleet.folder / "checked.toml"))
    assert (again["unchanged"], again["check"]["drift"]) == (7, [])
    assert [one["program"] for one in again["check"]["unchecked"]] == ["no-such-program"]


def test_an_interrupted_check_leaves_no_job_behind_and_applies_nothing(fleet: ProcessFleet) -> None:
    asked, slow = fleet.folder / "asked", fleet.folder / "slow.py"
    slow.write_text(f"import pathlib, time\npathlib.Path({str(asked)!r}).touch()\ntime.sleep(60)\n")
    text = f'[[jobs]]\nname = "slow"\ncommand = ["PYTHON", "{slow}", "--lr", "1"]\nhyper = {{ lr = 1 }}\n'
    process = fleet.start("apply", "--check", write(fleet, "slow.toml", text))
    until(asked.exists, "the program is asked", process=process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    [check] = [
        job
        for job in fleet.json("jobs", "--all")["jobs"]
        if job["name"].startswith("check: ") and "slow" in job["name"]
    ]
    assert check["state"] == "cancelled"
    assert fleet.run("show", "slow").returncode == 5


def test_the_status_has_the_manifest_its_sweeps_and_its_failures(fleet: ProcessFleet, trained: list[str]) -> None:
    out = fleet.run("status").stdout
    assert re.search(r"Manifest  \w+\.toml, applied \w+ ago\n  █+✗+", out)
    assert re.search(r"4 of \d completed", out)
    assert re.search(r"mlp-\{lr\}-\{width\} +█{12} +4 of 4 +– +val_loss +0\.017813 +lr=0\.01 width=128", out)
    assert re.search(r"diverges +\w+( \w+)? +box +ValueError: the loss is not finite", out)
    assert fleet.json("status")["manifest"]["counts"]["completed"] == 4


def test_sweeps_are_listed_and_one_is_shown_by_the_beginning_of_its_name(
    fleet: ProcessFleet, trained: list[str]
) -> None:
    assert "4 of 4" in fleet.run("sweeps").stdout
    out = fleet.run("sweeps", "show", "mlp").stdout
    assert "best      0.017813 with lr=0.01 width=128" in out
    assert re.search(r"★  mlp-0\.01-128 +0\.01 +128 +✓ completed +0\.017813 +box", out)
    assert "██ 0.017813 ★" in out
    other = fleet.run("sweeps", "show", "mlp", "--metric", "accuracy").stdout
    assert "accuracy, higher is better" in other
    assert fleet.json("sweeps", "show", "mlp", "--metric", "accuracy")["best"]["name"] == "mlp-0.01-128"


def test_a_sweep_or_a_metric_that_is_not_there_is_said_so(fleet: ProcessFleet, trained: list[str]) -> None:
    unknown = fleet.run("sweeps", "show", "nothing")
    assert (unknown.returncode, unknown.stdout) == (5, "")
    assert "there is no sweep 'nothing'" in unknown.stderr
    unmeasured = fleet.run("sweeps", "show", "mlp", "--metric", "f1")
    assert unmeasured.returncode == 2
    assert "there are: accuracy, val_loss" in unmeasured.stderr


def test_show_tells_of_a_training_what_it_was_and_what_came_of_it(fleet: ProcessFleet, trained: list[str]) -> None:
    out = fleet.run("show", "mlp-0.01-128").stdout
    assert re.search(r"hyper +lr=0\.01 width=128\n", out)
    assert re.search(r"metrics +(accuracy|val_loss)=", out)
    assert re.search(r"artifact +[0-9a-f]{64}\n +fetch it with: ostler artifacts get [0-9a-f]{12}\n", out)
    assert re.search(r"reason +ValueError: the loss is not finite\n", fleet.run("show", "diverges").stdout)


def test_jobs_are_listed_by_either_spelling_of_a_state(fleet: ProcessFleet, trained: list[str]) -> None:
    both = [
        [job["name"] for job in fleet.json("jobs", option, word)["jobs"] if job["name"].startswith("mlp-")]
        for option, word in (("--status", "completed"), ("--state", "succeeded"), ("--state", "completed"))
    ]
    assert sorted(both[0]) == sorted(name for name in trained if name.startswith("mlp-"))
    assert both[0] == both[1] == both[2]


def test_a_sweep_is_cancelled_and_run_again_as_one(fleet: ProcessFleet) -> None:
    file = write(
        fleet,
        "big.toml",
        '[defaults]\ncommand = ["true"]\nmin_ram_gib = 9000\n[[sweeps]]\nname = "big-{n}"\nmodel = "big"\n'
        "grid = { n = [1, 2, 3] }\n",
    )
    assert fleet.run("apply", file).returncode == 0
    done = fleet.run("sweeps", "cancel", "big")
    assert (done.returncode, done.stdout) == (0, "cancelled 3 jobs of big-{n}\n")
    assert fleet.json("sweeps", "show", "big")["counts"] == {"cancelled": 3}
    again = fleet.run("sweeps", "requeue", "big", "--failed")
    assert (again.returncode, again.stdout) == (0, "3 jobs of big-{n} wait for a place again\n")
    assert fleet.json("sweeps", "show", "big")["counts"] == {"pending": 3}
    assert fleet.json("sweeps", "requeue", "big")["counts"] == {"pending": 3}
    assert asked(fleet, "n\n", "sweeps", "cancel", "big") == (1, "Cancel 3 jobs of big-{n}? [y/N] ")
    assert fleet.json("sweeps", "show", "big")["counts"] == {"pending": 3}
    assert asked(fleet, "y\n", "sweeps", "cancel", "big")[0] == 0
    assert fleet.json("sweeps", "show", "big")["counts"] == {"cancelled": 3}


def asked(fleet: ProcessFleet, answer: str, *arguments: str) -> tuple[int, str]:
    """The exit code of a command on a terminal, and what it asked before it got this answer."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*OSTLER, *arguments], env=fleet.environment, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    told = b""
    while b"[y/N] " not in told:
        told += os.read(ours, 1024)
    os.write(ours, answer.encode())
    code = process.wait(60)
    os.close(ours)
    return code, told.decode()


def test_a_sweep_is_waited_for_as_one_and_judged_by_all_of_its_runs(fleet: ProcessFleet, trained: list[str]) -> None:
    assert fleet.run("sweeps", "wait", "mlp").returncode == 0
    done = fleet.run("sweeps", "wait", "no-such-sweep")
    assert done.returncode == 5
