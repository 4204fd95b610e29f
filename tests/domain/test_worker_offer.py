"""From what a worker says it can do to the offer that the core counts with."""

import msgspec
import pytest

from ostler.domain.resources import Device
from ostler.domain.worker import Capabilities, DeviceInfo, GpuInfo, Slots

GIB = 1024


def test_a_plain_registration_is_a_cpu_machine() -> None:
    offer = Capabilities().offer()
    assert (offer.backend, offer.devices, offer.cores_milli, offer.memory_mib) == ("cpu", (), 0, 0)


def test_cores_and_memory_are_rounded_down() -> None:
    offer = Capabilities(cpu_count=7.9999, memory_gb=15.9999).offer()
    assert (offer.cores_milli, offer.memory_mib) == (7999, 16 * GIB - 1)


def test_gpus_that_are_only_counted_share_the_memory_evenly() -> None:
    offer = Capabilities(gpu_backend="nvidia", gpu_count=3, vram_gb=72, gpu_type="L4").offer()
    assert [(device.index, device.vram_mib) for device in offer.devices] == [
        (0, 24 * GIB),
        (1, 24 * GIB),
        (2, 24 * GIB),
    ]


def test_an_uneven_split_never_promises_more_than_there_is() -> None:
    offer = Capabilities(gpu_backend="nvidia", gpu_count=3, vram_gb=10).offer()
    assert sum(device.vram_mib for device in offer.devices) <= 10 * GIB


def test_devices_that_are_listed_are_taken_as_they_are_in_order_of_index() -> None:
    listed = [DeviceInfo(index=3, vram_gb=80, uuid="GPU-3", name="H100"), DeviceInfo(index=1, vram_gb=24)]
    offer = Capabilities(gpu_backend="nvidia", gpu_count=2, vram_gb=104, devices=listed).offer()
    assert offer.devices == (Device(1, 24 * GIB), Device(3, 80 * GIB, "GPU-3", "H100"))


def test_devices_inside_gpu_info_count_as_well() -> None:
    info = GpuInfo(gpu_type="A100", count=1, devices=[DeviceInfo(index=5, vram_gb=40)])
    offer = Capabilities(gpu_backend="nvidia", gpu_count=1, vram_gb=40, gpu_info=info).offer()
    assert offer.devices == (Device(5, 40 * GIB),)
    assert offer.gpu_type == "A100"


def test_devices_that_are_only_named_are_counted() -> None:
    info = GpuInfo(devices=["NVIDIA L4", "NVIDIA L4"])
    offer = Capabilities(gpu_backend="nvidia", gpu_count=2, vram_gb=48, gpu_info=info).offer()
    assert [device.vram_mib for device in offer.devices] == [24 * GIB, 24 * GIB]


def test_two_devices_with_one_index_are_not_two_devices() -> None:
    listed = [DeviceInfo(index=0, vram_gb=24), DeviceInfo(index=0, vram_gb=24)]
    offer = Capabilities(gpu_backend="nvidia", gpu_count=2, vram_gb=48, devices=listed).offer()
    indices = [device.index for device in offer.devices]
    assert sorted(indices) == sorted(set(indices))
    assert sum(device.vram_mib for device in offer.devices) <= 48 * GIB


def test_fewer_listed_than_counted_falls_back_to_the_count() -> None:
    offer = Capabilities(
        gpu_backend="nvidia", gpu_count=4, vram_gb=96, devices=[DeviceInfo(index=0, vram_gb=24)]
    ).offer()
    assert [device.index for device in offer.devices] == [0, 1, 2, 3]


def test_devices_listed_without_their_memory_share_the_total_evenly() -> None:
    listed = [DeviceInfo(index=0, name="L4"), DeviceInfo(index=1, name="L4")]
    offer = Capabilities(gpu_backend="nvidia", gpu_count=2, vram_gb=48, devices=listed).offer()
    assert [device.vram_mib for device in offer.devices] == [24 * GIB, 24 * GIB]


def test_facts_are_labels_and_cannot_be_overruled_by_labels() -> None:
    offer = Capabilities(
        hostname="box", os="linux", arch="arm64", python="3.12", labels={"zone": "eu", "hostname": "other"}
    ).offer()
    assert offer.labels == {"hostname": "box", "os": "linux", "arch": "arm64", "python": "3.12", "zone": "eu"}


def test_torch_the_driver_and_cuda_are_facts_where_they_are_announced() -> None:
    gpus = GpuInfo(driver="550.54.15", cuda="12.4")
    announced = {"torch": "2.3.1+cu121", "driver": "550.54.15", "cuda": "12.4"}
    found = Capabilities(torch_version="2.3.1+cu121", gpu_info=gpus, labels={"torch": "9", "zone": "eu"})
    assert found.offer().labels == {**announced, "zone": "eu"}


def test_a_fact_that_is_not_known_is_no_label_and_leaves_a_label_of_its_name_alone() -> None:
    assert Capabilities(labels={"zone": "eu"}).offer().labels == {"zone": "eu"}
    own = {"torch": "2.1", "driver": "535", "cuda": "11.8", "python": "3.9"}
    assert Capabilities(labels=own, gpu_info=GpuInfo(gpu_type="A100")).offer().labels == own


@pytest.mark.parametrize(("said", "meant"), [("NVIDIA", "nvidia"), ("", "cpu"), ("Metal", "metal")])
def test_the_backend_is_read_whatever_its_case(said: str, meant: str) -> None:
    assert Capabilities(gpu_backend=said).offer().backend == meant


@pytest.mark.parametrize(
    "text",
    [
        '{"gpu_count": -1}',
        '{"gpu_count": 5000}',
        '{"gpu_count": 1e9}',
        '{"vram_gb": -0.5}',
        '{"memory_gb": 1e300}',
        '{"cpu_count": NaN}',
        '{"devices": [{"index": -1}]}',
        '{"labels": {"zone": 7}}',
    ],
)
def test_numbers_from_the_network_are_bounded(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text, type=Capabilities)


def test_fields_of_a_later_version_are_ignored() -> None:
    assert msgspec.json.decode('{"gpu_count": 1, "quantum_cores": 4}', type=Capabilities).gpu_count == 1


def test_slots_are_counted_by_pool() -> None:
    slots = Slots(batch_total=4, batch_in_use=3, service_total=2, service_in_use=1)
    assert (slots.total("batch"), slots.in_use("batch")) == (4, 3)
    assert (slots.total("service"), slots.in_use("service")) == (2, 1)
