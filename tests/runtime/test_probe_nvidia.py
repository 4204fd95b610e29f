"""NVIDIA GPUs: what is made of what NVML says."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.runtime.trees import plant

from ostler.domain.gpu_names import gpu_type
from ostler.domain.worker import DeviceInfo
from ostler.runtime.probe import (
    machine,
    nvidia,
    pci,
)
from ostler.runtime.probe.found import Found

GIB = 2**30
MEMORY = machine.Memory(total_bytes=64 * GIB, available_bytes=48 * GIB)

# --- nvidia -----------------------------------------------------------------------------------------------------------

UUIDS = [
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-1e0ac3d4-9f1b-6e23-7a64-5d3be5c6a001",
    "GPU-c4c9d3a1-02fb-97d4-61a0-0f6a2a4b5c02",
]
A100S = msgspec.json.decode(
    f"""
    {{"driver": "550.54.15", "cuda": "12.4", "gpus": [
      {{"index": 0, "uuid": "{UUIDS[0]}", "name": "NVIDIA A100-SXM4-40GB", "total_bytes": 42949672960, "free_bytes": 42300604416}},
      {{"index": 1, "uuid": "{UUIDS[1]}", "name": "NVIDIA A100-SXM4-40GB", "total_bytes": 42949672960, "free_bytes": 1073741824}},
      {{"index": 2, "uuid": "{UUIDS[2]}", "name": "NVIDIA A100-SXM4-40GB", "mig": [
        {{"slot": 0, "uuid": "MIG-4b1e31d8-0000", "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "gpu_instance": 1,
          "compute_instance": 0, "total_bytes": 20937965568, "free_bytes": 20000000000}},
        {{"slot": 2, "uuid": "MIG-9c77aa02-2222", "name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "gpu_instance": 9,
          "compute_instance": 0, "total_bytes": 5100273664, "free_bytes": 5000000000}}]}}]}}
    """,
    type=nvidia.Reading,
)


def nvidia_indices(mask: str | None) -> list[int]:
    env = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    return [device.index for device in nvidia.offered(A100S, env, MEMORY).devices]


def test_nvidia_gpus_are_offered_with_index_uuid_name_and_memory() -> None:
    found = nvidia.offered(A100S, {}, MEMORY)
    assert (found.driver, found.cuda) == ("550.54.15", "12.4")
    assert not found.unified_memory
    assert found.notes == []
    assert found.devices[1] == DeviceInfo(
        index=1, uuid=UUIDS[1], name="NVIDIA A100-SXM4-40GB", vram_gb=40.0, vram_free_gb=1.0
    )


def test_mig_instances_are_offered_in_place_of_their_gpu() -> None:
    found = nvidia.offered(A100S, {}, MEMORY)
    assert [device.index for device in found.devices] == [0, 1, 300, 302]
    assert found.devices[3].uuid == "MIG-9c77aa02-2222"
    assert found.devices[3].vram_gb == 4864 / 1024


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0, 1, 300, 302]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", [1]),
        ("1,0", [0, 1]),
        (" 0 , 1 ", [0, 1]),
        ("0,-1,1", [0]),
        ("0,7,1", [0]),
        (UUIDS[1], [1]),
        ("GPU-1e0ac3d4", [1]),
        ("2", [300, 302]),
        ("MIG-9c77aa02-2222", [302]),
        (f"MIG-{UUIDS[2]}/1/0", [300]),
    ],
)
def test_a_mask_that_is_set_is_respected_and_indices_stay_physical(mask: str | None, indices: list[int]) -> None:
    assert nvidia_indices(mask) == indices


def test_devices_that_a_mask_hides_are_noted() -> None:
    found = nvidia.offered(A100S, {"CUDA_VISIBLE_DEVICES": "1"}, MEMORY)
    assert found.notes == ["nvidia: CUDA_VISIBLE_DEVICES=1 leaves 1 of 4 devices"]


def test_a_mask_of_numbers_over_unlike_gpus_is_noted_unless_the_order_is_set() -> None:
    unlike = nvidia.Reading(
        gpus=[nvidia.Gpu(index=i, uuid=f"GPU-{i}", name=name, total_bytes=GIB) for i, name in enumerate(["A", "B"])]
    )
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert "PCI_BUS_ID" in nvidia.offered(unlike, env, MEMORY).notes[0]
    assert nvidia.offered(unlike, {**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, MEMORY).notes == []


def test_a_gpu_without_memory_of_its_own_offers_the_machines() -> None:
    reading = nvidia.Reading(gpus=[nvidia.Gpu(index=0, uuid="GPU-5", name="NVIDIA GB10")])
    found = nvidia.offered(reading, {}, MEMORY)
    assert found.unified_memory
    assert (found.devices[0].vram_gb, found.devices[0].vram_free_gb) == (64.0, 48.0)


class FakeNvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({3: "Not Supported", 6: "Not Found", 15: "GPU is lost"}[value])
        self.value = value


class FakeNvml:
    """NVML over plain tables; a number in place of an answer is the error that it raises."""

    NVMLError = FakeNvmlError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_UNKNOWN = 999
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, gpus: list[dict[str, Any]]) -> None:
        self.gpus = gpus

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13000

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, slot: int) -> Any:  # noqa: N802
        return self.answer(handle["slots"].get(slot, 6))

    def __getattr__(self, question: str) -> Callable[[dict[str, Any]], Any]:
        return lambda handle: self.answer(handle.get(question.removeprefix("nvmlDeviceGet"), 3))

    @staticmethod
    def answer(value: Any) -> Any:
        if type(value) is int and value in (3, 6, 15):
            raise FakeNvmlError(value)
        return value


def memory_info(total: int, free: int) -> SimpleNamespace:
    return SimpleNamespace(total=total, free=free, used=total - free)


def test_nvml_is_read_device_by_device_with_mig_and_unified_memory() -> None:
    instance = {
        "UUID": "MIG-1",
        "Name": "NVIDIA H100 MIG 1g.10gb",
        "MemoryInfo": memory_info(10 * GIB, 9 * GIB),
        "GpuInstanceId": 11,
        "ComputeInstanceId": 0,
    }
    reading = nvidia.read(
        FakeNvml(
            [
                {"UUID": "GPU-0", "Name": "NVIDIA L4", "MemoryInfo": memory_info(22 * GIB, 20 * GIB), "MigMode": 3},
                {"UUID": "GPU-1", "Name": "NVIDIA H100", "MigMode": [1, 1], "slots": {4: instance}},
                {"UUID": "GPU-2", "Name": "NVIDIA GB10", "MemoryInfo": 3, "MigMode": [0, 0]},
            ]
        )
    )
    assert (reading.driver, reading.cuda) == ("580.65.06", "13.0")
    whole, sliced, unified = reading.gpus
    assert (whole.total_bytes, whole.free_bytes, whole.mig) == (22 * GIB, 20 * GIB, None)
    assert sliced.mig is not None
    assert [(part.slot, part.uuid, part.gpu_instance) for part in sliced.mig] == [(4, "MIG-1", 11)]
    assert (unified.total_bytes, unified.mig) == (None, None)


def test_a_gpu_that_is_lost_costs_a_note_and_not_the_others() -> None:
    good = {"UUID": "GPU-1", "Name": "NVIDIA L4", "MemoryInfo": memory_info(22 * GIB, 20 * GIB)}
    reading = nvidia.read(FakeNvml([{"UUID": 15, "Name": "NVIDIA L4", "MemoryInfo": 15}, good]))
    assert [gpu.index for gpu in reading.gpus] == [1]
    assert reading.notes == ["nvidia: GPU 0 does not answer: GPU is lost"]


def test_a_gpu_with_mig_on_and_no_instances_is_noted() -> None:
    reading = nvidia.Reading(gpus=[nvidia.Gpu(index=0, uuid="GPU-0", name="NVIDIA H100", mig=[])])
    assert nvidia.offered(reading, {}, MEMORY) == Found(notes=["nvidia: GPU 0 has MIG on but no instances"])


def test_a_gpu_on_the_bus_is_told_from_no_gpu_at_all(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        **{
            "sys/bus/pci/devices/0000:00:1f.6/class": "0x020000\n",
            "sys/bus/pci/devices/0000:00:1f.6/vendor": "0x10DE\n",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x1002\n",
        },
    )
    assert pci.gpu_vendors(root) == {pci.AMD}


def test_what_nvml_said_of_a_real_h200_is_offered_as_one() -> None:
    """Read on such a machine with `nvidia.read`, driver 580.159.04; nothing of it was written by hand."""
    recorded = (Path(__file__).parent / "recorded/nvml-h200.json").read_bytes()
    found = nvidia.offered(msgspec.json.decode(recorded, type=nvidia.Reading), {}, MEMORY)
    assert (found.driver, found.notes, found.unified_memory) == ("580.159.04", [], False)
    assert [(device.index, device.name) for device in found.devices] == [(0, "NVIDIA H200")]
    assert gpu_type(found.devices[0].name) == "H200"
    assert 140 < found.devices[0].vram_gb < 141
