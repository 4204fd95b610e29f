"""What a user is held to follows what its tasks hold, whatever becomes of the machines and the jobs meanwhile."""

from tests.core.core_fleet import CoreFleet, capabilities, entry

from ostler.domain.hosts import HostPolicy
from ostler.domain.quota import Quota, Quotas


def shared() -> CoreFleet:
    """Two tasks share a GPU of 24 GiB."""
    core = CoreFleet()
    core.worker("box", devices=[24])
    core.submit("a", min_vram_gb=6)
    core.submit("b", min_vram_gb=6)
    assert core.fleet.gpus_used("ann") == 0.5
    return core


def test_a_cap_on_a_device_changes_the_part_of_it_that_its_users_hold() -> None:
    core = shared()
    core.follow(hosts={"box": HostPolicy(vram_gib=12)})
    assert core.fleet.gpus_used("ann") == 1.0
    core.end("a")
    assert core.fleet.gpus_used("ann") == 0.5
    core.end("b")
    assert core.fleet.running_of == {}


def test_a_share_of_a_device_that_has_gone_counts_as_one_device_and_no_more() -> None:
    core = shared()
    core.fleet.set_quotas(Quotas(users={"ann": Quota(running_gpus=3)}))
    core.beat("box", capabilities=capabilities(cores=64, memory=512))
    assert core.fleet.gpus_used("ann") == 2.0
    core.worker("other", devices=[24])
    core.submit("c", gpu_count=1)
    assert core.where("c") == "other"


def test_what_a_machine_that_claims_says_next_does_not_change_what_was_counted_before() -> None:
    core = CoreFleet()
    core.submit("a", min_vram_gb=6)
    core.claim("box", devices=[24])
    core.submit("b", min_vram_gb=6)
    core.claim("box", devices=[12])
    core.claim_end("box", "a")
    assert core.fleet.gpus_used("ann") == 0.5
    core.claim_end("box", "b")
    assert core.fleet.running_of == {}


def test_a_job_that_is_edited_while_it_runs_is_charged_for_what_it_holds() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24])
    core.follow(entry("a", gpu_count=1))
    core.start("a")
    core.follow(entry("a", gpu_count=0))
    core.wait(3600)
    core.end("a")
    assert core.fleet.usage.gpu_seconds("manifest", core.now) > 3000


def test_a_requeue_forgets_what_the_last_run_has_left_behind() -> None:
    core = CoreFleet()
    core.worker("w")
    core.submit("a")
    core.start("a")
    core.end("a", metrics={"loss": 1.0}, result_id="f" * 64, artifact_id="e" * 64)
    core.requeue("a")
    row = core.task("a")
    assert (row.metrics, row.result_id, row.artifact_id) == ({}, "", "")
