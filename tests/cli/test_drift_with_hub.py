"""The programs of a manifest are asked what they take: against a real hub, a real worker and a real trainer."""

import json
import re
from collections.abc import Iterator

import pytest
from tests.cli.test_manifest_with_hub import MANIFEST, TRAINER, write
from tests.process_fleet import TWO_A100, ProcessFleet

from ostler.cli.drift import CHECK


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


def drifted(fleet: ProcessFleet, name: str) -> str:
    """The manifest with a key that the trainer does not take, and with a value that is no number."""
    wrong = MANIFEST.replace("width = [64, 128]", "widht = [64, 128]").replace("-{width}", "-{widht}")
    return write(fleet, name, wrong.replace("hyper = { lr = 0.5,", 'hyper = { lr = "fast",'))


def programs_asked(fleet: ProcessFleet) -> int:
    return sum(job["name"].startswith(CHECK) for job in fleet.json("jobs", "--all", "--limit", "1000")["jobs"])


DRIFT = (
    r"{file}:18: jobs 'mlp-0\.1-64', 'mlp-0\.1-128', 'mlp-0\.01-64' and 1 more: hyper key 'widht': `\S+ \S+trainer\.py` "
    r"takes no --widht; did you mean --width\?\n"
    r"{file}:12: job 'too-big': hyper key 'lr': `\S+ \S+trainer\.py` does not take --lr fast: "
    r"invalid float value: 'fast'\n"
)


def test_an_apply_refuses_keys_and_values_that_the_program_does_not_take(fleet: ProcessFleet) -> None:
    file = drifted(fleet, "wrong-types.toml")
    done = fleet.run("apply", file)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(DRIFT.format(file=r"wrong-types\.toml") + "nothing was applied\n", done.stderr)
    assert {sweep["name"] for sweep in fleet.json("sweeps")["sweeps"]} == {"mlp-{lr}-{width}"}


def test_a_plan_shows_what_the_program_does_not_take(fleet: ProcessFleet) -> None:
    file = drifted(fleet, "wrong-plan.toml")
    done = fleet.run("plan", file)
    assert done.returncode == 1
    assert re.fullmatch(DRIFT.format(file=r"wrong-plan\.toml"), done.stderr)
    assert "+ inserted" in done.stdout
    told = fleet.run("plan", "--json", file)
    assert told.returncode == 1
    assert [one["key"] for one in json.loads(told.stdout)["check"]["drift"]] == ["widht", "lr"]
    unasked = fleet.run("plan", "--no-check", file)
    assert (unasked.returncode, unasked.stderr) == (0, "")


def test_a_list_leaves_out_the_jobs_that_ask_programs(fleet: ProcessFleet) -> None:
    assert fleet.run("plan", drifted(fleet, "listed.toml")).returncode == 1
    assert programs_asked(fleet) > 0
    for options in ([], ["--limit", "2"], ["--state", "succeeded,failed"]):
        listed = fleet.json("jobs", *options)["jobs"]
        assert not [job["name"] for job in listed if job["name"].startswith(CHECK)]
    assert len(fleet.json("jobs", "--limit", "2")["jobs"]) == 2
    asked = next(job for job in fleet.json("jobs", "--all")["jobs"] if job["name"].startswith(CHECK))
    assert fleet.json("jobs", "--name", asked["name"])["jobs"]


def test_a_reload_refuses_what_an_apply_refuses(fleet: ProcessFleet) -> None:
    drifted(fleet, "fleet.toml")
    done = fleet.run("reload")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(DRIFT.format(file=r"fleet\.toml") + "nothing was applied\n", done.stderr)
    assert {sweep["name"] for sweep in fleet.json("sweeps")["sweeps"]} == {"mlp-{lr}-{width}"}
    write(fleet, "fleet.toml", MANIFEST)
    again = fleet.json("reload")
    assert (again["unchanged"], again["check"]) == (6, {"drift": [], "unchecked": []})


def test_a_program_that_cannot_be_asked_is_noted_and_its_jobs_are_applied(fleet: ProcessFleet) -> None:
    (fleet.folder / "plain.py").write_text("print('it needs no options')\n")
    text = f"""
[defaults]
min_ram_gib = 9000
hyper = {{ lr = "fast" }}
[[jobs]]
name = "missing"
command = ["no-such-program", "{{hyper...}}"]
[[jobs]]
name = "plain"
command = ["PYTHON", "{fleet.folder}/plain.py", "{{hyper...}}"]
"""
    done = fleet.run("apply", write(fleet, "unasked.toml", text))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^note: `no-such-program` could not be checked: its --help failed: ", done.stderr, re.M)
    assert "plain.py` could not be checked: its --help is not that of argparse, click or typer\n" in done.stderr
    assert re.search(r"^2 inserted, ", done.stdout, re.M)
    assert fleet.run("cancel", "missing", "plain").returncode == 0


def test_an_apply_without_the_check_takes_the_manifest_as_it_is(fleet: ProcessFleet) -> None:
    wrong = '[[jobs]]\nname = "unasked"\nmin_ram_gib = 9000\ncommand = ["PYTHON", "TRAINER", "--lr", "fast"]\n'
    file = write(fleet, "taken.toml", wrong + 'hyper = { lr = "fast" }\n')
    assert fleet.run("apply", file).returncode == 1
    done = fleet.run("apply", "--no-check", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert fleet.run("cancel", "unasked").returncode == 0


def test_only_an_apply_that_may_replace_names_renames_a_job(fleet: ProcessFleet) -> None:
    text = '[[jobs]]\nname = "train-big"\nmodel = "renamed"\nmin_ram_gib = 9000\ncommand = ["PYTHON", "TRAINER", "{hyper...}"]\n'
    text += "hyper = { lr = 0.5 }\n"
    assert fleet.run("apply", write(fleet, "names.toml", text)).returncode == 0
    asked = programs_asked(fleet)
    file = write(fleet, "names.toml", text.replace("train-big", "nightly-eval"))
    refused = fleet.run("apply", file)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert programs_asked(fleet) == asked, "no program is run for a manifest that is refused"
    assert "'train-big' would become 'nightly-eval'" in refused.stderr
    assert re.search(r"nightly-eval +name +train-big +nightly-eval\n", fleet.run("plan", file).stdout)
    done = fleet.run("apply", "--replace", file)
    assert re.search(r"~ updated +nightly-eval +[0-9a-f]{12} +name\n", done.stdout)
    assert fleet.run("cancel", "nightly-eval").returncode == 0
