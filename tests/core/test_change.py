"""The smallest change: it starts the job when it is made, and nothing smaller of its kind does."""

import re
from typing import Any

import pytest
from tests.core.core_fleet import CoreFleet
from tests.core.test_explain import held_machine

from ostler.core.foresight.change import ORDER, smallest
from ostler.core.foresight.explain import Change
from ostler.domain.quantities import parse_size
from ostler.domain.quota import Quota, Quotas
from ostler.hub.apart import tried
from ostler.sim.triples import verify


def changes(core: CoreFleet, job_id: str) -> dict[str, Change]:
    found = smallest(core.fleet, core.fleet.jobs[job_id], core.now, tried)
    assert [change.kind for change in found] == sorted((change.kind for change in found), key=ORDER.index)
    return {change.kind: change for change in found}


@pytest.mark.parametrize(
    ("offer", "wanted", "kind", "words"),
    [
        ({"gpus": 2, "vram": 48}, {"gpu_count": 4}, "gpu_count", "ask for 2 GPUs instead of 4 (on box)"),
        (
            {"devices": [24]},
            {"gpu_count": 1, "min_vram_gb": 40},
            "vram",
            "ask for 24 GiB of VRAM instead of 40 GiB (on box)",
        ),
        ({"devices": [24, 8]}, {"min_vram_gb": 40}, "vram", "ask for 24 GiB of VRAM instead of 40 GiB (on box)"),
        ({"cores": 4}, {"min_cpu_cores": 8}, "cores", "ask for 4 cores instead of 8 (on box)"),
        ({"memory": 4}, {"min_memory_gb": 8}, "memory", "ask for 4 GiB of memory instead of 8 GiB (on box)"),
        ({}, {"node_count": 3}, "nodes", "ask for 1 node instead of 3"),
        ({}, {"labels": ["zone = eu"]}, "labels", "drop the constraint 'zone = eu' (on box)"),
        (
            {"gpus": 1, "gpu_type": "L4"},
            {"gpu_count": 1, "gpu_type": "H100|A100"},
            "gpu_type",
            "take any GPU type, not only a100 or h100 (on box)",
        ),
        (
            {"backend": "metal", "gpus": 1},
            {"gpu_backend": "nvidia"},
            "backend",
            "take any backend, not only nvidia (on box)",
        ),
        ({}, {"allowed_hosts": ["alpha"]}, "hosts", "take any host, not only alpha (on box)"),
        ({}, {"prefer_cuda": True}, "preference", "do not wait for a CUDA worker (on box)"),
        ({"slots": 0}, {}, "slots", "give box 1 batch slot instead of 0"),
    ],
)
def test_the_smallest_change_is_told_in_the_units_of_the_request(
    offer: dict[str, Any], wanted: dict[str, Any], kind: str, words: str
) -> None:
    core = CoreFleet()
    core.worker("box", **offer)
    found = changes(core, core.submit(**wanted))
    assert next(iter(found)) == kind
    assert found[kind].words == words


def test_a_share_of_a_gpu_can_be_a_smaller_share() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24])
    core.submit(gpu_share=0.6)
    found = changes(core, core.submit(gpu_share=0.7))
    assert (found["gpu_share"].was, found["gpu_share"].to) == (700, 400)


def test_where_two_axes_are_in_the_way_everywhere_only_a_machine_helps_and_it_is_described() -> None:
    core = CoreFleet()
    core.worker("box", cores=1, memory=1)
    found = changes(core, core.submit(min_cpu_cores=8, min_memory_gb=8, labels=["driver >= 550", "zone in eu,us"]))
    assert list(found) == ["machine"]
    assert found["machine"].words == "add a machine with 8 cores, 8 GiB of memory, driver = 550 and zone = eu"


def test_a_machine_that_is_to_be_added_is_described_with_its_facts() -> None:
    core = CoreFleet()
    rules = ["python >= 3.12", "os = darwin", "arch != x86_64", "hostname in a.example.org,b", "zone exists"]
    found = changes(core, core.submit(min_cpu_cores=8, labels=rules))
    listed = "8 cores, hostname = a.example.org, os = darwin, python = 3.12 and zone = yes"
    assert found["machine"].words == f"add a machine with {listed}"
    found = changes(core, core.submit(min_cpu_cores=8, min_memory_gb=8, allowed_hosts=["alpha", "beta"]))
    assert found["machine"].words == "add a machine with 8 cores, 8 GiB of memory and hostname = alpha"


@pytest.mark.parametrize(
    "rule",
    [
        "f > -5",
        "f > 0.75",
        "f > 1e6",
        "f < -5",
        "f < 0",
        "f < 0.1",
        "zone > eu",
        "zone < eu",
        "cuda > 12.4",
        "v < 1.0.2",
    ],
)
def test_a_machine_that_is_to_be_added_meets_every_kind_of_rule_on_labels(rule: str) -> None:
    core = CoreFleet()
    assert list(changes(core, core.submit(labels=[rule]))) == ["machine"]


def test_a_machine_that_is_to_be_added_has_the_python_that_is_asked_for() -> None:
    core = CoreFleet()
    found = changes(core, core.submit(labels=["python >= 3.12"]))
    assert found["machine"].to["machine"].python == "3.12"


def test_others_in_the_queue_take_the_first_machines_that_are_added() -> None:
    core = CoreFleet()
    for _ in range(3):
        core.submit(gpu_count=1)
    found = changes(core, core.submit(gpu_count=1))
    assert found["machine"].to["count"] == 4


def test_where_only_a_drain_is_in_the_way_the_change_is_to_resume() -> None:
    core = CoreFleet()
    core.worker("box")
    core.drain("box")
    assert changes(core, core.submit())["resume"].workers == ["box"]


def test_a_worker_that_others_would_fill_first_is_not_named_to_be_resumed() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    core.drain("box")
    first, second = core.submit(), core.submit()
    assert "resume" in changes(core, first)
    assert "resume" not in changes(core, second)


def test_a_worker_that_is_away_is_to_come_back_with_what_it_has() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2)
    core.start(core.submit(gpu_count=1, job_tier="training"))
    core.leave("box")
    assert changes(core, core.submit(gpu_count=1))["return"].workers == ["box"]
    assert "return" not in changes(core, core.submit(gpu_count=2))


def test_a_quota_is_raised_by_as_much_as_those_before_it_need_too() -> None:
    core = CoreFleet()
    core.worker("box")
    core.fleet.set_quotas(Quotas(default=Quota(running_jobs=2)))
    jobs = [core.submit() for _ in range(5)]
    found = changes(core, jobs[-1])
    assert (found["quota"].was, found["quota"].to) == (2, 5)
    assert found["quota"].words == "raise the quota running_jobs of ann from 2 to 5"


def test_a_dependency_can_be_given_up() -> None:
    core = CoreFleet()
    core.worker("box")
    first = core.submit(gpu_count=1)
    found = changes(core, core.submit(depends_on=[first]))
    assert found["depends_on"].words == f"do not wait for {first}"


def test_what_is_kept_out_by_a_hold_may_end_in_time_or_go_first() -> None:
    core, _, passing = held_machine()
    found = changes(core, passing)
    assert list(found) == ["run_time", "priority", "machine"]
    assert (found["priority"].was, found["priority"].to) == (0, 1)
    limit = found["run_time"].to
    assert isinstance(limit, int)
    assert core.where(core.submit(gpu_count=1, max_runtime_hours=(limit + 60) / 3600)) == ""
    assert core.where(core.submit(gpu_count=1, max_runtime_hours=(limit - 1) / 3600)) == "box"


def test_a_job_whose_old_process_is_still_there_is_told_no_change() -> None:
    core = CoreFleet()
    core.worker("box")
    job = core.submit()
    core.start(job)
    core.requeue(job)
    assert changes(core, job) == {}


def test_nothing_is_changed_by_looking_for_it() -> None:
    core, _, passing = held_machine()
    before = core.fleet.feed_seq, core.free("box"), core.queue(), dict(core.fleet.holds.on)
    changes(core, passing)
    assert (core.fleet.feed_seq, core.free("box"), core.queue(), dict(core.fleet.holds.on)) == before
    assert not core.fleet.touched.jobs and not core.fleet.touched.tasks


def test_a_need_that_is_read_off_the_screen_is_the_one_that_was_meant() -> None:
    """The change is written with few digits; what is written must still fit."""
    core = CoreFleet()
    core.worker("box", cores=12.345, memory=503.75)
    found = changes(core, core.submit(min_cpu_cores=16))["cores"].words
    cores = re.match(r"ask for ([\d.]+) cores", found)
    found = changes(core, core.submit(min_memory_gb=600))["memory"].words
    memory = re.match(r"ask for ([\d.]+ GiB) of memory", found)
    assert cores is not None and memory is not None
    assert (
        core.where(core.submit(min_cpu_cores=float(cores[1]), min_memory_gb=parse_size(memory[1]) / 1024**3)) == "box"
    )


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in (1, 2, 3))])
def test_of_random_fleets_and_queues_every_change_is_true_and_the_smallest(block: int) -> None:
    named, wrong = 0, []
    for seed in range(block * 20, block * 20 + 20):
        number, mistakes = verify(seed, tried)
        named += number
        wrong += mistakes
    assert not wrong
    assert named > 10
