"""What a user is held to follows what its tasks hold, whatever becomes of the machines and the jobs meanwhile."""

from tests.core.yard import Yard, capabilities, entry

from ostler.domain.hosts import HostPolicy
from ostler.domain.quota import Quota, Quotas


def shared() -> Yard:
    """Two tasks share a GPU of 24 GiB."""
    yard = Yard()
    yard.worker("box", devices=[24])
    yard.submit("a", min_vram_gb=6)
    yard.submit("b", min_vram_gb=6)
    assert yard.fleet.gpus_used("ann") == 0.5
    return yard


def test_a_cap_on_a_device_changes_the_part_of_it_that_its_users_hold() -> None:
    yard = shared()
    yard.follow(hosts={"box": HostPolicy(vram_gib=12)})
    assert yard.fleet.gpus_used("ann") == 1.0
    yard.end("a")
    assert yard.fleet.gpus_used("ann") == 0.5
    yard.end("b")
    assert yard.fleet.running_of == {}


def test_a_share_of_a_device_that_has_gone_counts_as_one_device_and_no_more() -> None:
    yard = shared()
    yard.fleet.set_quotas(Quotas(users={"ann": Quota(running_gpus=3)}))
    yard.beat("box", capabilities=capabilities(cores=64, memory=512))
    assert yard.fleet.gpus_used("ann") == 2.0
    yard.worker("other", devices=[24])
    yard.submit("c", gpu_count=1)
    assert yard.where("c") == "other"


def test_what_a_machine_that_claims_says_next_does_not_change_what_was_counted_before() -> None:
    yard = Yard()
    yard.submit("a", min_vram_gb=6)
    yard.claim("box", devices=[24])
    yard.submit("b", min_vram_gb=6)
    yard.claim("box", devices=[12])
    yard.claim_end("box", "a")
    assert yard.fleet.gpus_used("ann") == 0.5
    yard.claim_end("box", "b")
    assert yard.fleet.running_of == {}


def test_a_job_that_is_edited_while_it_runs_is_charged_for_what_it_holds() -> None:
    yard = Yard()
    yard.worker("box", devices=[24])
    yard.follow(entry("a", gpu_count=1))
    yard.start("a")
    yard.follow(entry("a", gpu_count=0))
    yard.wait(3600)
    yard.end("a")
    assert yard.fleet.usage.gpu_seconds("manifest", yard.now) > 3000


def test_a_requeue_forgets_what_the_last_run_has_left_behind() -> None:
    yard = Yard()
    yard.worker("w")
    yard.submit("a")
    yard.start("a")
    yard.end("a", metrics={"loss": 1.0}, result_id="f" * 64, artifact_id="e" * 64)
    yard.requeue("a")
    row = yard.task("a")
    assert (row.metrics, row.result_id, row.artifact_id) == ({}, "", "")
