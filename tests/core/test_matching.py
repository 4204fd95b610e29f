"""May this worker run this task? Every axis, every worked case of the scheduling page, and the words of each refusal."""

from typing import Any

import msgspec
import pytest
from tests.core.core_fleet import CoreFleet, capabilities, holding

from ostler.core.effects import AssignTask
from ostler.core.holding import Holding
from ostler.core.match import Reason, unmet
from ostler.domain.job import JobSpec
from ostler.domain.worker import DeviceInfo, Slots

FULL = "NVIDIA A100-SXM4-80GB"
GPU_BOX = {"gpus": 8, "vram": 640, "gpu_type": "A100", "cores": 64, "memory": 512}


def reasons(core: CoreFleet, worker: str, **needs: Any) -> list[Reason]:
    return unmet(JobSpec(command=["true"], **needs).request(), core.fleet.workers[worker], core.now)


@pytest.mark.parametrize(
    ("offer", "needs", "taken"),
    [
        pytest.param(
            {"gpus": 2, "vram": 48}, {"gpu_count": 2, "min_vram_gb": 48}, True, id="2x24 takes 2 GPUs with 48"
        ),
        pytest.param({"gpus": 2, "vram": 32}, {"gpu_count": 1, "min_vram_gb": 16}, True, id="2x16 takes 1 GPU with 16"),
        pytest.param({"gpus": 2, "vram": 32}, {"gpu_count": 1, "min_vram_gb": 24}, False, id="2x16 refuses 1 with 24"),
        pytest.param({"gpus": 1, "vram": 24}, {"gpu_backend": "metal"}, False, id="nvidia refuses metal"),
        pytest.param({"backend": "vulkan", "gpus": 1, "vram": 8}, {}, True, id="vulkan takes a job with no backend"),
        pytest.param(
            {"backend": "vulkan", "gpus": 1, "vram": 8}, {"gpu_count": 1}, True, id="vulkan takes any GPU job"
        ),
        pytest.param({}, {"gpu_count": 1, "gpu_backend": "nvidia"}, False, id="cpu refuses 1 nvidia GPU"),
        pytest.param({}, {"gpu_backend": "cpu"}, True, id="cpu named means a cpu worker"),
        pytest.param({"gpus": 1, "vram": 8}, {"gpu_backend": "cpu"}, False, id="a GPU worker refuses cpu named"),
        pytest.param({"gpus": 1, "vram": 8}, {}, True, id="0 GPUs fits a GPU worker too"),
        pytest.param(
            {"gpus": 1, "vram": 40, "gpu_type": "A100"}, {"gpu_count": 1, "gpu_type": "a100"}, True, id="case"
        ),
        pytest.param(
            {"gpus": 1, "vram": 40, "gpu_type": "A100"}, {"gpu_count": 1, "gpu_type": "auto"}, True, id="auto"
        ),
        pytest.param(
            {"gpus": 1, "vram": 40, "gpu_type": "A100"}, {"gpu_count": 1, "gpu_type": "H100"}, False, id="type"
        ),
        pytest.param({"devices": [16, 48]}, {"gpu_count": 1, "min_vram_gb": 48}, True, id="known per device"),
        pytest.param({"devices": [16, 48]}, {"gpu_count": 2, "min_vram_gb": 64}, True, id="together"),
        pytest.param({"devices": [16, 48]}, {"gpu_count": 2, "min_vram_gb": 65}, False, id="not even together"),
        pytest.param({"devices": [16, 48]}, {"min_vram_gb": 48}, True, id="shares one device"),
        pytest.param({"devices": [16, 48]}, {"min_vram_gb": 49}, False, id="a share never spans two devices"),
        pytest.param({}, {"min_vram_gb": 1}, False, id="no GPU to share"),
        pytest.param({"devices": [16]}, {"gpu_share": 0.999}, True, id="a part of one device"),
        pytest.param({}, {"gpu_share": 0.1}, False, id="no GPU to take a part of"),
        pytest.param({"gpus": 1}, {"gpu_share": 0.1}, False, id="no part of what nobody knows the size of"),
        pytest.param({"devices": [16]}, {"gpu_share": 0.5, "min_vram_gb": 9}, True, id="a part, and no less than that"),
        pytest.param({"devices": [16]}, {"gpu_share": 0.5, "min_vram_gb": 17}, False, id="a part with too much memory"),
        pytest.param(
            {"gpus": 1, "vram": 40, "gpu_type": "A100"}, {"gpu_count": 1, "gpu_type": "H100| a100"}, True, id="either"
        ),
        pytest.param(
            {"gpus": 1, "vram": 40, "gpu_type": "L4"}, {"gpu_count": 1, "gpu_type": "h100|A100"}, False, id="neither"
        ),
        pytest.param({"gpus": 1, "vram": 40}, {"gpu_count": 1, "gpu_type": "A100|auto"}, True, id="or any"),
        pytest.param({"gpus": 1, "gpu_type": FULL}, {"gpu_count": 1, "gpu_type": "a100"}, True, id="short for long"),
        pytest.param({"gpus": 1, "gpu_type": FULL}, {"gpu_count": 1, "gpu_type": FULL.lower()}, True, id="full name"),
        pytest.param(
            {"gpus": 1, "gpu_type": "NVIDIA A100-SXM4-40GB"},
            {"gpu_count": 1, "gpu_type": FULL},
            False,
            id="other build",
        ),
        pytest.param(
            {"gpus": 1, "gpu_type": f"{FULL} MIG 1g.10gb"}, {"gpu_count": 1, "gpu_type": "A100"}, False, id="a slice"
        ),
        pytest.param({"cores": 4}, {"min_cpu_cores": 4}, True, id="all cores"),
        pytest.param({"cores": 4}, {"min_cpu_cores": 4.001}, False, id="one thousandth too many"),
        pytest.param({"memory": 8}, {"min_memory_gb": 8}, True, id="all memory"),
        pytest.param({"memory": 8}, {"min_memory_gb": 8.001}, False, id="one MiB too much"),
        pytest.param({"cores": 0, "memory": 0}, {}, True, id="no requirement fits anything"),
        pytest.param({"labels": {"zone": "eu"}}, {"labels": ["zone = eu"]}, True, id="label"),
        pytest.param({"labels": {"zone": "eu"}}, {"labels": ["zone = eu", "rack exists"]}, False, id="every label"),
        pytest.param({"hostname": "box7"}, {"labels": ["hostname in box6,box7"]}, True, id="hostname is a fact"),
        pytest.param(
            {"os": "linux", "arch": "arm64"}, {"labels": ["os = linux", "arch != x86_64"]}, True, id="os, arch"
        ),
        pytest.param({"service_slots": 1, "slots": 0}, {"type": "service"}, True, id="a service takes a service slot"),
        pytest.param({"service_slots": 0}, {"type": "service"}, False, id="a batch slot is not for services"),
        pytest.param(
            {"service_slots": 0}, {"type": "service", "slot_pool": "batch"}, True, id="unless the pool is named"
        ),
    ],
)
def test_a_worker_takes_what_fits_it_and_nothing_else(
    offer: dict[str, Any], needs: dict[str, Any], taken: bool
) -> None:
    core = CoreFleet()
    core.worker("box", **offer)
    job = core.submit(**needs)
    assert core.where(job) == ("box" if taken else "")
    assert core.state(job) == ("assigned" if taken else "pending")


def test_an_8_gpu_worker_with_a_4_gpu_job_takes_another_4_and_refuses_5() -> None:
    core = CoreFleet()
    core.worker("box", gpus=8, vram=640)
    first, five, second = core.submit(gpu_count=4), core.submit(gpu_count=5), core.submit(gpu_count=4)
    assert [core.where(job) for job in (first, five, second)] == ["box", "", "box"]
    assert not set(core.devices(first)) & set(core.devices(second))


def test_of_a_2_and_an_8_gpu_worker_that_ask_again_and_again_a_4_gpu_job_goes_to_the_8_once() -> None:
    core = CoreFleet()
    core.worker("two", gpus=2, vram=160)
    core.worker("eight", gpus=8, vram=640)
    given = []
    core.submit("big", gpu_count=4)
    given += [(effect.worker_id, effect.task_id) for effect in core.of(AssignTask)]
    for _ in range(5):
        for name in ("two", "eight"):
            core.ask(name)
            given += [(effect.worker_id, effect.task_id) for effect in core.of(AssignTask)]
    assert given == [("eight", "big")]


@pytest.mark.parametrize(
    ("axis", "offer", "needs", "numbers"),
    [
        ("backend", {"gpus": 1}, {"gpu_backend": "metal"}, ("metal", "nvidia")),
        ("gpu_type", {"gpus": 1, "gpu_type": "L4"}, {"gpu_type": "H100"}, ("h100", "L4")),
        ("gpu_count", GPU_BOX, {"gpu_count": 9}, ("9 GPUs", "8 free of 8")),
        ("vram", {"devices": [24, 24]}, {"gpu_count": 2, "min_vram_gb": 64}, ("64 GiB", "48 GiB")),
        ("vram", {"devices": [24, 16]}, {"min_vram_gb": 32}, ("32 GiB", "24 GiB")),
        ("cores", {"cores": 4}, {"min_cpu_cores": 6.5}, ("6.5 cores", "4 free of 4")),
        ("memory", {"memory": 8}, {"min_memory_gb": 9.5}, ("9.5 GiB", "8 GiB free of 8 GiB")),
        ("slots", {"slots": 0}, {}, ("batch slot", "0 free of 0")),
        ("labels", {"labels": {"zone": "us"}}, {"labels": ["zone = eu"]}, ("zone = eu", "zone = us")),
        ("labels", {}, {"labels": ["rack exists"]}, ("rack exists", "no label rack")),
    ],
)
def test_each_axis_refuses_with_what_is_needed_and_what_is_there(
    axis: str, offer: dict[str, Any], needs: dict[str, Any], numbers: tuple[str, str]
) -> None:
    core = CoreFleet()
    core.worker("gpu-box-2", **offer)
    [reason] = reasons(core, "gpu-box-2", **needs)
    assert reason.axis == axis
    assert "gpu-box-2" in reason.text
    assert all(number in reason.text for number in numbers), reason.text


def test_what_is_held_is_told_beside_what_there_is() -> None:
    core = CoreFleet()
    core.worker("box", **GPU_BOX)
    core.submit(gpu_count=6, min_cpu_cores=60, min_memory_gb=500)
    told = {reason.axis: reason for reason in reasons(core, "box", gpu_count=4, min_cpu_cores=8, min_memory_gb=64)}
    assert told["gpu_count"].text == "needs 4 GPUs; box has 2 free of 8"
    assert told["cores"].text == "needs 8 cores; box has 4 free of 64"
    assert told["memory"].text == "needs 64 GiB of memory; box has 12 GiB free of 512 GiB"
    assert not any(reason.lasting for reason in told.values())


def test_every_failed_axis_is_told_at_once() -> None:
    core = CoreFleet()
    core.worker("box", cores=1, memory=1, slots=0)
    core.drain("box")
    told = reasons(
        core,
        "box",
        gpu_count=1,
        gpu_type="H100",
        gpu_backend="nvidia",
        min_cpu_cores=2,
        min_memory_gb=2,
        labels=["zone = eu", "rack exists"],
    )
    axes = ["health", "backend", "gpu_type", "labels", "labels", "gpu_count", "cores", "memory", "slots"]
    assert sorted(reason.axis for reason in told) == sorted(axes)


def test_a_worker_that_is_offline_draining_or_leaving_takes_nothing_and_says_so() -> None:
    core = CoreFleet()
    core.worker("gone")
    core.leave("gone")
    core.worker("drained")
    core.drain("drained")
    core.worker("leaving")
    core.beat("leaving", draining=True)
    job = core.submit()
    assert core.where(job) == ""
    told = {
        name: [reason.text for reason in reasons(core, name) if reason.axis == "health"] for name in core.fleet.workers
    }
    assert told == {
        "gone": ["gone is offline"],
        "drained": ["drained is draining and takes nothing new"],
        "leaving": ["leaving is draining and takes nothing new"],
    }
    core.drain("drained", False)
    assert core.where(job) == "drained"


def test_nothing_is_placed_before_a_worker_has_announced_its_slots() -> None:
    core = CoreFleet()
    core.worker("box", slots=None)
    job = core.submit()
    assert core.where(job) == ""
    assert [reason.text for reason in reasons(core, "box")] == ["box has not announced its slots yet"]
    core.register("box", slots=1)
    assert core.where(job) == "box"


def test_an_offer_that_shrank_below_what_is_held_still_takes_what_needs_nothing_of_it() -> None:
    """0 means: no requirement."""
    core = CoreFleet()
    core.worker("box", cores=8, memory=64)
    core.start(core.submit(min_cpu_cores=8, min_memory_gb=64))
    core.beat("box", capabilities=capabilities(cores=4, memory=32))
    assert core.where(core.submit()) == "box"
    assert core.where(core.submit(min_cpu_cores=0.1)) == ""


def test_a_device_that_shrank_under_its_shares_is_no_contradiction() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24])
    first = core.submit(min_vram_gb=20)
    core.start(first)
    core.beat("box", holding((first, core.attempt(first))), capabilities=capabilities(devices=[16]))
    assert core.where(first) == "box"
    assert core.where(core.submit(min_vram_gb=1)) == ""


def test_a_device_that_left_the_offer_is_not_granted_and_is_there_again_when_it_comes_back() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24, 24])
    first = core.submit(gpu_count=1)
    core.start(first)
    held = core.devices(first)
    core.beat("box", capabilities=capabilities(devices=[]))
    assert core.where(core.submit("second", gpu_count=1)) == ""
    core.beat("box", capabilities=capabilities(devices=[24, 24]))
    assert core.where("second") == "box"
    assert not set(held) & set(core.devices("second"))


def test_memory_that_programs_outside_take_lowers_the_offer_while_it_lasts_and_why_says_so() -> None:
    core = CoreFleet()
    busy = DeviceInfo(index=0, vram_gb=24, outside_gb=10, outside="python (pid 77)")
    core.worker("box", devices=[24])
    offer = msgspec.structs.replace(capabilities(devices=[24]), devices=[busy])
    core.beat("box", capabilities=offer)
    job = core.submit(gpu_count=1, min_vram_gb=20)
    assert core.where(job) == ""
    assert "have 14 GiB (10 GiB of GPU 0 are taken by python (pid 77))" in core.why(job).summary
    assert core.why(job).summary.startswith("waits for room")
    clean = msgspec.structs.replace(offer, devices=[DeviceInfo(index=0, vram_gb=24)])
    core.beat("box", capabilities=clean)
    assert core.where(job) == "box"


def test_a_quarantined_device_is_granted_to_nobody_and_why_names_the_culprit() -> None:
    core = CoreFleet()
    dirty = DeviceInfo(index=1, vram_gb=24, quarantine="900 MiB still held after task t ended, by pid 9 (python)")
    core.register(
        "box", msgspec.structs.replace(capabilities(devices=[24, 24]), devices=[DeviceInfo(vram_gb=24), dirty])
    )
    core.beat("box", slots=Slots(batch_total=8))
    first, second = core.submit(gpu_count=1), core.submit(gpu_count=1)
    assert core.devices(first) == (0,)
    assert core.where(second) == ""
    assert "has 0 free of 2 (GPU 1 is quarantined: 900 MiB still held after task t ended" in core.why(second).summary
    assert core.where(core.submit(min_vram_gb=4)) == "", "nor is a share of it"


def _held(core: CoreFleet, job: str) -> Holding:
    held = core.holder(job)
    assert held is not None
    return held.held


def test_parts_of_a_gpu_add_up_to_it_and_are_granted_of_its_memory() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24])
    thirds = [core.submit(gpu_share=1 / 3) for _ in range(4)]
    assert [core.where(job) for job in thirds] == ["box", "box", "box", ""]
    assert _held(core, thirds[0]).grant.share_mib == 24 * 1024 * 333 // 1000
    core.end(thirds[0])
    assert core.where(thirds[3]) == "box"


def test_a_part_is_of_whichever_device_it_is_on() -> None:
    core = CoreFleet()
    core.worker("box", devices=[80, 16])
    first, second = core.submit(gpu_share=0.75), core.submit(gpu_share=0.75)
    granted = {core.devices(job): _held(core, job).grant.share_mib for job in (first, second)}
    assert granted == {(0,): 60 * 1024, (1,): 12 * 1024}


def test_why_a_part_or_a_type_is_not_to_be_had_is_said_in_words() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24], gpu_type="L4")
    core.submit(gpu_share=0.7)
    [taken] = reasons(core, "box", gpu_share=0.5)
    assert taken.text == "needs 0.5 of one GPU; the emptiest GPU of box has 0.3 free" and not taken.lasting
    [also] = reasons(core, "box", gpu_share=0.2, min_vram_gb=30)
    assert "needs 0.2 of one GPU with 30 GiB of VRAM" in also.text and also.lasting
    [kind] = reasons(core, "box", gpu_count=0, gpu_share=0.1, gpu_type="H100|A100")
    assert kind.text == "needs GPU type a100 or h100; box has L4" and kind.lasting
    core.worker("blind", gpus=1)
    [unknown] = reasons(core, "blind", gpu_share=0.5)
    assert unknown.text == "needs 0.5 of one GPU; blind has no GPU whose memory is known"


def test_a_job_that_names_one_build_of_a_gpu_goes_to_that_build_and_one_that_names_the_type_to_either() -> None:
    core = CoreFleet()
    core.worker("a", gpus=1, vram=80, gpu_type="NVIDIA A100 80GB PCIe")
    core.worker("b", gpus=1, vram=80, gpu_type=FULL)
    assert core.where(core.submit(gpu_count=1, gpu_type=FULL)) == "b"
    assert core.where(core.submit(gpu_count=1, gpu_type="a100")) == "a"


def test_the_names_of_a_gpu_follow_each_heartbeat() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, vram=80, gpu_type="NVIDIA L4")
    any_build, one_build = (core.submit(gpu_count=1, gpu_type=name) for name in ("a100", FULL))
    assert (core.where(any_build), core.where(one_build)) == ("", "")
    core.beat("box", capabilities=capabilities(gpus=2, vram=80, gpu_type="NVIDIA A100 80GB PCIe"))
    assert (core.where(any_build), core.where(one_build)) == ("box", "")
    core.beat("box", capabilities=capabilities(gpus=2, vram=80, gpu_type=FULL))
    assert core.where(one_build) == "box"


def test_a_refusal_names_the_type_of_a_gpu_and_its_full_name() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=80, gpu_type=FULL)
    [kind] = reasons(core, "box", gpu_count=1, gpu_type="NVIDIA A100-SXM4-40GB")
    assert kind.text == f"needs GPU type nvidia a100-sxm4-40gb; box has A100 ({FULL})"
