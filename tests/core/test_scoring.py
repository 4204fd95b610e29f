"""Which of those that may: best fit, so that scarce things stay whole; and which devices."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.core_fleet import CoreFleet, capabilities
from tests.core.strategies import needs

from ostler.core.holding import holding
from ostler.core.room import Room, pick_devices
from ostler.domain.job import JobSpec
from ostler.domain.worker import Capabilities

GIB = 1024


def test_a_cpu_job_prefers_a_machine_without_gpus_even_a_fuller_or_later_one() -> None:
    core = CoreFleet()
    core.worker("a-gpu", gpus=1, vram=8, cores=4)
    core.worker("z-cpu", cores=64)
    assert core.where(core.submit(min_cpu_cores=4)) == "z-cpu"


def test_a_cpu_job_takes_a_gpu_machine_where_there_is_no_other() -> None:
    core = CoreFleet()
    core.worker("gpu", gpus=8, vram=640)
    core.worker("cpu", cores=2)
    assert core.where(core.submit(min_cpu_cores=4)) == "gpu"


@pytest.mark.parametrize("machines", [1, 2, 6])
def test_a_cpu_job_on_a_gpu_machine_is_given_no_part_of_any_gpu(machines: int) -> None:
    core = CoreFleet()
    for number in range(machines):
        core.worker(f"gpu-{number}", gpus=1, vram=24 + 8 * number, cores=8 + number)
    job = core.submit(min_cpu_cores=4)
    (attempt,) = core.fleet.workers[core.where(job)].attempts.values()
    assert attempt.held.grant.devices == ()
    assert all(core.where(core.submit(gpu_count=1)) for _ in range(machines))


def test_of_gpu_machines_a_cpu_job_prefers_the_one_with_fewer_gpus() -> None:
    core = CoreFleet()
    core.worker("a-eight", gpus=8, vram=640)
    core.worker("b-one", gpus=1, vram=80)
    assert core.where(core.submit()) == "b-one"


def test_a_small_gpu_job_leaves_the_big_machine_whole() -> None:
    core = CoreFleet()
    core.worker("a-eight", gpus=8, vram=640)
    core.worker("b-two", gpus=2, vram=160)
    jobs = [core.submit(gpu_count=1) for _ in range(2)]
    assert [core.where(job) for job in jobs] == ["b-two", "b-two"]
    assert core.where(core.submit(gpu_count=8)) == "a-eight"


def test_gpu_jobs_fill_a_machine_before_they_break_the_next() -> None:
    core = CoreFleet()
    core.worker("a", gpus=4, vram=96)
    core.worker("b", gpus=4, vram=96)
    jobs = [core.submit(gpu_count=1) for _ in range(4)]
    assert {core.where(job) for job in jobs} == {"a"}
    assert core.where(core.submit(gpu_count=4)) == "b"


def test_a_preferred_label_wins_among_those_that_fit_and_excludes_nobody() -> None:
    core = CoreFleet()
    core.worker("a", cores=8)
    core.worker("b", gpus=8, vram=640, cores=8, labels={"zone": "eu"})
    wish = {"prefer_labels": ["zone = eu"], "min_cpu_cores": 8}
    assert core.where(core.submit(**wish)) == "b"
    assert core.where(core.submit(**wish)) == "a"


def test_more_preferred_labels_count_more() -> None:
    core = CoreFleet()
    core.worker("a", labels={"zone": "eu"})
    core.worker("b", labels={"zone": "eu", "disk": "nvme"})
    assert core.where(core.submit(prefer_labels=["zone = eu", "disk = nvme"])) == "b"


def test_a_preferred_number_and_a_preferred_version_count_by_their_own_order() -> None:
    core = CoreFleet()
    core.worker("a", labels={"f": "-5", "python": "3.9"}, cores=4)
    core.worker("b", labels={"f": "0.8", "python": "3.10"}, cores=64)
    assert core.where(core.submit(prefer_labels=["f >= 0.75"])) == "b"
    assert core.where(core.submit(prefer_labels=["python >= 3.10"])) == "b"


def test_a_preferred_worker_is_found_among_many_that_differ() -> None:
    core = CoreFleet()
    core.worker("w000", cores=8, labels={"zone": "eu"})
    for number in range(1, 130):
        core.worker(f"w{number:03d}", cores=8 + number)
    assert core.where(core.submit(prefer_labels=["zone = eu"])) == "w000"


def test_ties_go_to_the_first_id_whatever_the_order_of_registration() -> None:
    for names in (("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")):
        core = CoreFleet()
        for name in names:
            core.worker(name, gpus=2, vram=48)
        assert core.where(core.submit(gpu_count=2)) == "a"
        assert core.where(core.submit(gpu_count=2)) == "b"


def test_the_choice_is_explained_by_the_parts_of_its_score() -> None:
    core = CoreFleet()
    core.worker("a", labels={"zone": "eu"})
    job = core.submit(prefer_labels=["zone = eu"])
    [row] = core.ledger.attempts_of(job)
    assert row.why.startswith("a scored best (")
    assert "preferred labels -100.00" in row.why


def test_the_smallest_devices_that_do_are_granted() -> None:
    core = CoreFleet()
    core.worker("box", devices=[80, 24, 40, 24])
    assert core.devices(core.submit(gpu_count=1)) == (1,)
    assert core.devices(core.submit(gpu_count=1, min_vram_gb=30)) == (2,)
    assert core.devices(core.submit(gpu_count=2, min_vram_gb=100)) == (0, 3)


def test_a_share_goes_to_the_fullest_device_that_still_has_room() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24, 24])
    shares = [core.submit(min_vram_gb=10) for _ in range(4)]
    assert [core.devices(job) for job in shares] == [(0,), (0,), (1,), (1,)]
    assert core.where(core.submit(min_vram_gb=10)) == ""
    assert core.where(core.submit(min_vram_gb=4)) == "box"


def test_a_device_that_is_shared_is_never_granted_whole_nor_a_whole_one_shared() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24, 24])
    shared = core.submit(min_vram_gb=1)
    whole = core.submit(gpu_count=1)
    assert core.devices(shared) != core.devices(whole)
    assert core.where(core.submit(gpu_count=1)) == ""
    assert core.devices(core.submit(min_vram_gb=1)) == core.devices(shared)
    core.end(shared)
    assert core.free("box")[2] == (23 * GIB, 0)


def test_a_share_prefers_a_device_that_is_already_broken_on_another_machine() -> None:
    core = CoreFleet()
    core.worker("a", devices=[24])
    core.worker("b", devices=[24])
    core.drain("a")
    core.submit(min_vram_gb=4)
    core.drain("a", False)
    assert core.where(core.submit(min_vram_gb=4)) == "b"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 48), min_size=1, max_size=5), st.lists(needs(), max_size=12), st.randoms())
def test_no_device_is_ever_promised_twice(devices: list[int], wanted: list[dict[str, Any]], random: Any) -> None:
    room = Room(capabilities(devices=devices).offer())
    held = []
    for one in wanted:
        request = JobSpec(command=["true"], **one).request()
        grant = pick_devices(request, room)
        if grant is not None:
            held.append((request, grant))
            room.take(holding(request, grant))
        elif held and random.random() < 0.5:
            gone = held.pop(random.randrange(len(held)))
            room.give(holding(*gone))
        for index, size in enumerate(devices):
            here = [(request, grant) for request, grant in held if index in grant.devices]
            whole = [grant for _, grant in here if not grant.share_mib]
            shares = sum(grant.share_mib for _, grant in here)
            assert len(whole) <= 1 and not (whole and shares)
            assert shares <= size * GIB
    for request, grant in held:
        assert len(grant.devices) == (request.gpu_count or bool(request.vram_mib))
        if request.gpu_count:
            assert sum(devices[index] for index in grant.devices) * GIB >= request.vram_mib


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 48), max_size=5), st.integers(1, 5), st.integers(0, 120))
def test_whole_devices_are_refused_only_where_no_choice_would_do(devices: list[int], count: int, vram: int) -> None:
    room = Room(capabilities(devices=devices).offer())
    request = JobSpec(command=["true"], gpu_count=count, min_vram_gb=vram).request()
    possible = len(devices) >= count and sum(sorted(devices)[-count:]) >= vram
    assert (pick_devices(request, room) is not None) == possible


@pytest.mark.parametrize("reported", [{"gpus": 3, "vram": 72}, {"devices": [24, 24, 24]}])
def test_devices_that_are_known_and_devices_that_are_counted_are_granted_alike(reported: dict[str, Any]) -> None:
    core = CoreFleet()
    offer: Capabilities = core.worker("box", **reported).capabilities
    assert offer.gpu_count == 3
    assert core.devices(core.submit(gpu_count=2, min_vram_gb=48)) == (0, 1)
