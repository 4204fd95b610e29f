"""What a job may ask for beside its command, through the command line, a hub and a worker; and what is refused."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process_fleet import ProcessFleet, process_fleet, until

SETTINGS = """
[templates.greet]
command = ["sh", "-c", "echo $GREETING $WHO"]
min_cpu_cores = 0.5
env = { GREETING = "good morning", WHO = "nobody" }

[quotas.users.ann]
queued_jobs = 2
[quotas.users.bob]
running_jobs = 1
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("fleet"), "box", settings=SETTINGS) as made:
        yield made


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def with_steps(folder: Path, **steps: str) -> tuple[str, str]:
    """The options that submit a spec of these steps."""
    file = folder / "job.json"
    file.write_text(json.dumps({name: shell(text) for name, text in steps.items()}))
    return "--file", str(file)


def refusal(fleet: ProcessFleet, body: Any) -> tuple[int, dict[str, Any]]:
    """How the hub answers this submit, which must be refused."""
    headers = {"Authorization": f"Bearer {fleet.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{fleet.url}/v1/jobs", json.dumps(body).encode(), headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    problem: dict[str, Any] = json.loads(refused.value.read())
    assert refused.value.headers["Content-Type"] == "application/problem+json"
    return refused.value.code, problem


def jobs_named(fleet: ProcessFleet, name: str) -> list[dict[str, Any]]:
    return list(fleet.hub.all_jobs(name=name))


# Steps


def test_prolog_command_and_epilog_write_one_log_in_their_order(fleet: ProcessFleet, tmp_path: Path) -> None:
    steps = with_steps(tmp_path, prolog="echo before", command="echo during; exit 3", epilog="echo after")
    done = fleet.check_run("run", *steps, code=3)
    assert done.stdout.splitlines() == ["before", "during", "after"]


def test_a_failed_prolog_fails_the_job_and_the_reason_says_so(fleet: ProcessFleet, tmp_path: Path) -> None:
    steps = with_steps(tmp_path, prolog="echo before; exit 7", command="echo never", epilog="echo after")
    job_id = fleet.submit(*steps)
    told = fleet.check_run("wait", job_id, code=1).stderr
    assert "the prolog failed with exit code 7" in told
    job = fleet.show(job_id)
    assert (job["state"], job["exit_code"]) == ("failed", 7)
    assert "the prolog failed with exit code 7" in job["reason"]
    log = fleet.check_run("logs", job_id).stdout.splitlines()
    assert (log[0], log[-1]) == ("before", "after")
    assert "never" not in log


def test_a_failed_command_and_a_failed_epilog_are_both_in_the_reason(fleet: ProcessFleet, tmp_path: Path) -> None:
    job_id = fleet.submit(*with_steps(tmp_path, command="exit 3", epilog="exit 4"))
    fleet.check_run("wait", job_id, code=1)
    job = fleet.show(job_id)
    assert (job["state"], job["exit_code"]) == ("failed", 3)
    assert job["reason"] == "exit code 3; the epilog failed with exit code 4"


def test_the_epilog_runs_after_a_cancel(fleet: ProcessFleet, tmp_path: Path) -> None:
    mark = tmp_path / "cleaned"
    steps = with_steps(tmp_path, command="echo ready; exec sleep 60", epilog=f"echo cleaned; touch {mark}")
    job_id = fleet.submit(*steps)
    assert next(fleet.client.job(job_id).follow_logs()) == "ready\n"
    fleet.check_run("cancel", job_id)
    until(mark.exists, "the epilog has run")
    fleet.await_free("box")
    assert fleet.check_run("logs", job_id).stdout.splitlines() == ["ready", "cleaned"]
    assert fleet.ends_told(job_id) == {job_id: ["cancelled"]}


# Templates, folders, orders


def test_a_template_of_the_hubs_settings_is_run_by_its_name_and_the_options_go_before_it(fleet: ProcessFleet) -> None:
    assert fleet.check_run("run", "--template", "greet").stdout == "good morning nobody\n"
    job_id = fleet.submit("--template", "greet", "--env", "WHO=all of you", "--wait")
    assert fleet.check_run("logs", job_id).stdout == "good morning all of you\n"
    assert fleet.show(job_id)["spec"]["min_cpu_cores"] == 0.5


def test_a_program_starts_in_the_folder_that_was_sent_along_and_nowhere_else(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    (tmp_path / "code" / "part").mkdir(parents=True)
    (tmp_path / "code" / "main.sh").write_text("#!/bin/sh\ncat part/words.txt\nfind . -type f | sort\n")
    (tmp_path / "code" / "main.sh").chmod(0o755)
    (tmp_path / "code" / "part" / "words.txt").write_text("from the folder\n")
    done = fleet.check_run("run", "--snapshot", str(tmp_path / "code"), "--", "./main.sh")
    assert done.stdout.splitlines() == ["from the folder", "./main.sh", "./part/words.txt"]


def test_what_comes_after_another_job_starts_when_that_has_succeeded(fleet: ProcessFleet, tmp_path: Path) -> None:
    gate, diary = tmp_path / "gate", tmp_path / "diary"
    first = fleet.submit("--", *shell(f"until test -e {gate}; do sleep 0.05; done; echo first >> {diary}"))
    second = fleet.submit("--after", first, "--", *shell(f"echo second >> {diary}"))
    third = fleet.submit("--after", first, "--after", second, "--", *shell(f"echo third >> {diary}"))
    why = fleet.hub.why(third)
    assert first in why["summary"] or second in why["summary"], why
    gate.touch()
    fleet.check_run("wait", first, second, third)
    assert diary.read_text().split() == ["first", "second", "third"]


def test_what_waits_for_a_job_that_fails_is_cancelled_and_names_it(fleet: ProcessFleet) -> None:
    first = fleet.submit("--", *shell("sleep 0.3; exit 1"))
    second = fleet.submit("--after", first, "--", "true")
    fleet.check_run("wait", second, code=1)
    job = fleet.show(second)
    assert (job["state"], job["attempts"]) == ("cancelled", [])
    assert first in job["reason"] and "failed" in job["reason"]


# Quotas


def test_a_submit_beyond_the_quota_is_refused_by_the_quotas_name(fleet: ProcessFleet) -> None:
    nowhere = {"command": ["true"], "gpu_count": 64, "name": "too-many", "user_id": "ann"}
    kept = fleet.hub.submit([nowhere, nowhere])["ids"]
    told = fleet.check_run("submit", "--user", "ann", "--name", "too-many", "--", "true", code=4).stderr
    assert re.search(r"quota queued_jobs is 2", told)
    status, problem = refusal(fleet, nowhere)
    assert (status, problem["title"]) == (429, "quota exceeded")
    assert "queued_jobs" in problem["detail"]
    assert {job["id"] for job in jobs_named(fleet, "too-many")} == set(kept), "nothing of it was kept"
    for job_id in kept:
        fleet.hub.cancel(job_id)
    fleet.check_run("run", "--user", "ann", "--", "true")


def test_a_job_beyond_the_quota_of_running_ones_waits_and_why_names_the_quota(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    waits = shell(f"until test -e {gate}; do sleep 0.05; done")
    first = fleet.submit("--user", "bob", "--", *waits)
    until(lambda: fleet.hub.job(first)["state"] == "running", "the first runs")
    second = fleet.submit("--user", "bob", "--", *waits)
    told = fleet.check_run("why", second).stdout
    assert "Held by a quota: bob has 1 of 1 running_jobs." in told
    assert fleet.hub.job(second)["state"] == "pending"
    gate.touch()
    fleet.check_run("wait", first, second)


# What is refused


def test_jobs_that_wait_for_each_other_are_refused_together(fleet: ProcessFleet) -> None:
    ids = ["circle-a", "circle-b", "circle-c"]
    specs = [
        {"id": one, "command": ["true"], "name": "circle", "depends_on": [other]}
        for one, other in zip(ids, [*ids[1:], ids[0]], strict=True)
    ]
    status, problem = refusal(fleet, [{"command": ["true"], "name": "circle"}, *specs])
    assert status == 422
    assert all(one in problem["detail"] for one in ids)
    assert "depends_on" in problem["errors"][0]["where"]
    assert jobs_named(fleet, "circle") == []
    status, problem = refusal(fleet, {"id": "circle-d", "command": ["true"], "depends_on": ["circle-d"]})
    assert (status, problem["errors"][0]["where"]) == (422, "depends_on")


def test_an_array_on_several_nodes_is_refused(fleet: ProcessFleet) -> None:
    told = fleet.check_run("submit", "--array", "3", "--nodes", "2", "--", "true", code=2).stderr
    assert "--array (array): cannot be combined with node_count" in told
    status, problem = refusal(fleet, {"command": ["true"], "array": 3, "node_count": 2})
    assert (status, problem["errors"][0]["where"]) == (422, "array")


def test_an_unknown_template_is_refused_and_the_nearest_is_named(fleet: ProcessFleet) -> None:
    told = fleet.check_run("submit", "--template", "greets", code=2).stderr
    assert "--template (template): there is no template 'greets'; did you mean 'greet'?" in told
    status, problem = refusal(fleet, {"template": "greets"})
    assert (status, problem["errors"][0]["where"]) == (422, "template")


def test_a_wait_for_a_job_that_does_not_exist_is_refused(fleet: ProcessFleet) -> None:
    told = fleet.check_run("submit", "--after", "no-such-job", "--", "true", code=2).stderr
    assert "--after (depends_on): there is no job no-such-job" in told


def test_a_folder_over_the_limit_is_refused_before_it_is_read_and_its_largest_file_named(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    (tmp_path / "small.py").write_text("pass\n")
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(501 * 1024 * 1024)
    done = fleet.check_run("submit", "--name", "heavy", "--snapshot", str(tmp_path), "--", "true", code=2)
    assert done.stdout == ""
    assert "more than the 500.0 MiB of a snapshot" in done.stderr
    assert "weights.bin (501.0 MiB)" in done.stderr
    assert done.stderr.count("\n") == 1
    assert jobs_named(fleet, "heavy") == []
