"""Other GPUs: what is made of what sysfs, system_profiler and vulkaninfo say."""

import os
from pathlib import Path

import pytest
from tests.runtime.trees import plant

from ostler.domain.gpu_names import gpu_type
from ostler.domain.worker import DeviceInfo
from ostler.runtime.probe import (
    accelerators,
    machine,
    metal,
    rocm,
    vulkan,
)
from ostler.runtime.probe.found import Found, gib

GIB = 2**30
MEMORY = machine.Memory(total_bytes=64 * GIB, available_bytes=48 * GIB)

# --- rocm -------------------------------------------------------------------------------------------------------------


def amd_machine(root: Path) -> Path:
    plant(
        root,
        **{
            "sys/devices/0000:43:00.0/vendor": "0x1002\n",
            "sys/devices/0000:43:00.0/device": "0x74a1\n",
            "sys/devices/0000:43:00.0/mem_info_vram_total": f"{192 * GIB}\n",
            "sys/devices/0000:43:00.0/mem_info_vram_used": f"{2 * GIB}\n",
            "sys/devices/0000:43:00.0/unique_id": "5c88007c2c9b4d3a\n",
            "sys/devices/0000:43:00.0/product_name": "AMD Instinct MI300X\n",
            "sys/devices/0000:03:00.0/vendor": "0x1002\n",
            "sys/devices/0000:03:00.0/device": "0x73bf\n",
            "sys/devices/0000:03:00.0/mem_info_vram_total": f"{16 * GIB}\n",
            "sys/devices/0000:00:02.0/vendor": "0x8086\n",
        },
    )
    cards = {"card0": "0000:00:02.0", "card1": "0000:43:00.0", "card2": "0000:03:00.0"}
    for card, address in cards.items():
        (root / "sys/class/drm" / card).mkdir(parents=True)
        (root / "sys/class/drm" / card / "device").symlink_to(root / "sys/devices" / address)
    return root


def test_amd_gpus_are_read_from_sysfs_in_the_order_of_the_bus(tmp_path: Path) -> None:
    cards = rocm.read(amd_machine(tmp_path))
    found = rocm.offered(cards, {}, "6.10.5")
    assert found.devices == [
        DeviceInfo(index=0, name="AMD 0x73bf", vram_gb=16.0),
        DeviceInfo(index=1, uuid="GPU-5c88007c2c9b4d3a", name="AMD Instinct MI300X", vram_gb=192.0, vram_free_gb=190.0),
    ]
    assert found.driver == "6.10.5"


def test_the_masks_of_rocm_are_read_one_after_the_other(tmp_path: Path) -> None:
    cards = rocm.read(amd_machine(tmp_path))

    def left(**env: str) -> list[int]:
        return [device.index for device in rocm.offered(cards, env).devices]

    assert left(ROCR_VISIBLE_DEVICES="GPU-5c88007c2c9b4d3a") == [1]
    assert left(ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0") == [1]
    assert left(HIP_VISIBLE_DEVICES="0") == [0]
    assert left(CUDA_VISIBLE_DEVICES="") == []


def test_an_amd_gpu_that_rocm_cannot_reach_is_noted(tmp_path: Path) -> None:
    assert "/dev/kfd" in rocm.probe(amd_machine(tmp_path)).notes[0]
    assert rocm.probe(tmp_path / "elsewhere") == Found()


def test_an_amd_gpu_with_rocm_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    root = plant(amd_machine(tmp_path), **{"dev/kfd": "", "opt/rocm/version": "6.4"})
    assert len(rocm.probe(root).devices) == 2


# --- metal ------------------------------------------------------------------------------------------------------------

APPLE_SILICON = """
{ "SPDisplaysDataType" : [ {
  "_name" : "kHW_AppleM3ProItem",
  "spdisplays_mtlgpufamilysupport" : "spdisplays_metal3",
  "spdisplays_ndrvs" : [ { "_name" : "Color LCD", "_spdisplays_pixels" : "3024 x 1964" } ],
  "spdisplays_vendor" : "sppci_vendor_Apple",
  "sppci_bus" : "spdisplays_builtin",
  "sppci_cores" : "18",
  "sppci_device_type" : "spdisplays_gpu",
  "sppci_model" : "Apple M3 Pro" } ] }
"""
INTEL_MAC = """
{ "SPDisplaysDataType" : [
  { "_name" : "Intel UHD Graphics 630", "spdisplays_metal" : "spdisplays_metalfeaturesetfamily22",
    "spdisplays_vendor" : "Intel", "spdisplays_vram_shared" : "1536 MB", "sppci_model" : "Intel UHD Graphics 630" },
  { "_name" : "AMD Radeon Pro 5500M", "spdisplays_metal" : "spdisplays_metalfeaturesetfamily22",
    "spdisplays_vendor" : "sppci_vendor_amd", "spdisplays_vram" : "8 GB", "sppci_model" : "AMD Radeon Pro 5500M" },
  { "_name" : "NVIDIA GeForce 9400M", "spdisplays_metal" : "spdisplays_notsupported", "spdisplays_vram" : "256 MB" }
] }
"""


def test_apple_silicon_offers_two_thirds_of_its_memory_to_its_gpu() -> None:
    sysctl = metal.parse_sysctl("hw.memsize: 38654705664\niogpu.wired_limit_mb: 0\n")
    found = metal.offered(metal.parse_profile(APPLE_SILICON), sysctl, machine.Memory(36 * GIB, 10 * GIB))
    assert found.unified_memory
    (device,) = found.devices
    assert device.name == "Apple M3 Pro"
    assert device.vram_gb == pytest.approx(36 * 0.67, abs=0.001)
    assert device.vram_free_gb == 10.0


def test_a_limit_that_the_owner_of_a_mac_has_set_counts() -> None:
    sysctl = metal.parse_sysctl("hw.memsize: 38654705664\niogpu.wired_limit_mb: 30720\n")
    found = metal.offered(metal.parse_profile(APPLE_SILICON), sysctl, MEMORY)
    assert found.devices[0].vram_gb == 30.0


def test_a_mac_with_several_gpus_offers_the_one_with_the_most_memory() -> None:
    gpus = metal.parse_profile(INTEL_MAC)
    assert [gpu.name for gpu in gpus] == ["Intel UHD Graphics 630", "AMD Radeon Pro 5500M"]
    found = metal.offered(gpus, {}, MEMORY)
    assert found.devices == [DeviceInfo(index=0, name="AMD Radeon Pro 5500M", vram_gb=8.0)]
    assert not found.unified_memory
    assert "Intel UHD Graphics 630 not offered" in found.notes[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"SPDisplaysDataType": []}', '{"SPDisplaysDataType": ["?"]}'])
def test_a_mac_without_a_gpu_offers_none(text: str) -> None:
    assert metal.offered(metal.parse_profile(text), {}, MEMORY) == Found()


# --- vulkan -----------------------------------------------------------------------------------------------------------

SUMMARY = """\
==========
VULKANINFO
==========

Vulkan Instance Version: 1.3.275


Instance Extensions: count = 2
-------------------------------
VK_KHR_device_group_creation           : extension revision 1
VK_KHR_surface                         : extension revision 25

Instance Layers: count = 1
--------------------------
VK_LAYER_MESA_device_select Linux device selection layer 1.3.211  version 1

Devices:
========
GPU0:
\tapiVersion         = 1.3.274
\tdriverVersion      = 24.0.9
\tvendorID           = 0x8086
\tdeviceID           = 0x9a49
\tdeviceType         = PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU
\tdeviceName         = Intel(R) Xe Graphics (TGL GT2)
\tdriverID           = DRIVER_ID_INTEL_OPEN_SOURCE_MESA
\tdriverName         = Intel open-source Mesa driver
\tdriverInfo         = Mesa 24.0.9-0ubuntu0.3
\tconformanceVersion = 1.3.6.0
\tdeviceUUID         = 8680499a-0100-0000-0002-000000000000
\tdriverUUID         = 2d9aa4ea-8e0a-cf4b-4e6e-9f0fa9d5f7a4
GPU1:
\tapiVersion         = 1.3.274
\tdriverVersion      = 24.0.9
\tvendorID           = 0x1002
\tdeviceID           = 0x73bf
\tdeviceType         = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU
\tdeviceName         = AMD Radeon RX 6800 XT (RADV NAVI21)
\tdriverID           = DRIVER_ID_MESA_RADV
\tdriverName         = radv
\tdriverInfo         = Mesa 24.0.9-0ubuntu0.3
\tconformanceVersion = 1.3.0.0
\tdeviceUUID         = 00000000-0300-0000-0000-000000000000
\tdriverUUID         = 414d442d-4d45-5341-2d44-525600000000
GPU2:
\tapiVersion         = 1.3.274
\tdriverVersion      = 0.0.1
\tvendorID           = 0x10005
\tdeviceID           = 0x0000
\tdeviceType         = PHYSICAL_DEVICE_TYPE_CPU
\tdeviceName         = llvmpipe (LLVM 17.0.6, 256 bits)
\tdriverID           = DRIVER_ID_MESA_LLVMPIPE
\tdriverName         = llvmpipe
\tdriverInfo         = Mesa 24.0.9-0ubuntu0.3 (LLVM 17.0.6)
\tconformanceVersion = 1.3.1.1
\tdeviceUUID         = 6d657361-3234-2e30-2e39-2d3075627500
\tdriverUUID         = 6c6c766d-7069-7065-5555-494400000000
"""
REPORT = """\
Layers: count = 1
=================
VK_LAYER_MESA_device_select (Linux device selection layer) Vulkan version 1.3.211, layer version 1:
\tDevices: count = 3
\t\tGPU id = 0 (Intel(R) Xe Graphics (TGL GT2))

Device Properties and Extensions:
=================================
GPU0:
VkPhysicalDeviceProperties:
---------------------------
\tapiVersion        = 1.3.274 (4206866)
\tdeviceName        = Intel(R) Xe Graphics (TGL GT2)

VkPhysicalDeviceMemoryProperties:
=================================
memoryHeaps: count = 1
\tmemoryHeaps[0]:
\t\tsize   = 12348030976 (0x2e0000000) (11.50 GiB)
\t\tbudget = 8589934592 (0x200000000) (8.00 GiB)
\t\tusage  = 0 (0x00000000) (0.00 B)
\t\tflags: count = 1
\t\t\tMEMORY_HEAP_DEVICE_LOCAL_BIT
memoryTypes: count = 1
\tmemoryTypes[0]:
\t\theapIndex     = 0
\t\tpropertyFlags = 0x0001: count = 1
\t\t\tMEMORY_PROPERTY_DEVICE_LOCAL_BIT
GPU1:
VkPhysicalDeviceMemoryProperties:
=================================
memoryHeaps: count = 3
\tmemoryHeaps[0]:
\t\tsize   = 16895705088 (0x3ef000000) (15.74 GiB)
\t\tbudget = 16106127360 (0x3c0000000) (15.00 GiB)
\t\tusage  = 0 (0x00000000) (0.00 B)
\t\tflags: count = 2
\t\t\tMEMORY_HEAP_DEVICE_LOCAL_BIT
\t\t\tMEMORY_HEAP_MULTI_INSTANCE_BIT
\tmemoryHeaps[1]:
\t\tsize   = 33554432000 (0x7d0000000) (31.25 GiB)
\t\tbudget = 33554432000 (0x7d0000000) (31.25 GiB)
\t\tusage  = 0 (0x00000000) (0.00 B)
\t\tflags:
\t\t\tNone
\tmemoryHeaps[2]:
\t\tsize   = 268435456 (0x10000000) (256.00 MiB)
\t\tflags: count = 2
\t\t\tMEMORY_HEAP_DEVICE_LOCAL_BIT
\t\t\tMEMORY_HEAP_MULTI_INSTANCE_BIT
memoryTypes: count = 1
"""


def vulkan_names(summary: str = SUMMARY, **env: str) -> list[str]:
    found = vulkan.offered(vulkan.parse_summary(summary), vulkan.parse_heaps(REPORT), env)
    return [gpu_type(device.name) for device in found.devices]


def test_vulkan_offers_the_card_with_its_own_memory_and_no_software_renderer() -> None:
    found = vulkan.offered(vulkan.parse_summary(SUMMARY), vulkan.parse_heaps(REPORT), {})
    assert found.devices == [
        DeviceInfo(
            index=1,
            uuid="00000000-0300-0000-0000-000000000000",
            name="AMD Radeon RX 6800 XT (RADV NAVI21)",
            vram_gb=gib(16895705088),
            vram_free_gb=15.0,
        )
    ]
    assert found.driver == "Mesa 24.0.9-0ubuntu0.3"
    assert not found.unified_memory
    assert found.notes == ["vulkan: Intel(R) Xe Graphics (TGL GT2) not offered beside a discrete GPU"]


def test_integrated_graphics_are_offered_where_they_are_all_there_is() -> None:
    alone = SUMMARY.partition("GPU1:")[0]
    found = vulkan.offered(vulkan.parse_summary(alone), vulkan.parse_heaps(REPORT), {})
    assert found.unified_memory
    assert found.devices[0].vram_free_gb == 8.0


def test_llvmpipe_alone_is_no_gpu() -> None:
    gpus = vulkan.parse_summary("GPU0:" + SUMMARY.partition("GPU2:")[2])
    assert [gpu.is_software for gpu in gpus] == [True]
    assert vulkan.offered(gpus, {}, {}) == Found()


def test_a_card_that_two_drivers_show_is_offered_once() -> None:
    again = "GPU3:" + SUMMARY.partition("GPU1:")[2].partition("GPU2:")[0]
    assert vulkan_names(SUMMARY + again) == ["RX6800XT"]


def test_what_a_vendors_mask_hides_does_not_come_back_through_vulkan() -> None:
    assert vulkan_names(ROCR_VISIBLE_DEVICES="") == ["Xe"]
    assert vulkan_names(GGML_VK_VISIBLE_DEVICES="0") == ["Xe"]
    assert vulkan_names(GGML_VK_VISIBLE_DEVICES="") == []
    nvidia_card = SUMMARY.replace("0x1002", "0x10de")
    assert vulkan_names(nvidia_card, CUDA_VISIBLE_DEVICES="0") == ["Xe"]


def test_a_card_whose_memory_is_not_told_is_offered_with_a_note() -> None:
    found = vulkan.offered(vulkan.parse_summary(SUMMARY), {}, {})
    assert found.devices[0].vram_gb == 0.0
    assert "vulkan: the memory of AMD Radeon RX 6800 XT (RADV NAVI21) is not known" in found.notes


def test_the_vulkan_probe_asks_vulkaninfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, summary=SUMMARY, report=REPORT)
    tool = tmp_path / "vulkaninfo"
    tool.write_text(
        '#!/bin/sh\nhere=${0%/*}\nif [ "$1" = --summary ]; then cat $here/summary; else cat $here/report; fi\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in ("GGML_VK_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    result = accelerators.find(30.0, ["vulkan"])
    assert result.backend == "vulkan"
    assert [device.index for device in result.found.devices] == [1]
