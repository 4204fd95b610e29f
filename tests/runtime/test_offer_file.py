"""Offers from a file, in place of detection."""

from pathlib import Path

import pytest

from ostler.domain.errors import BadInput, Unreadable
from ostler.runtime.probe import (
    describe,
    load_offer,
    machine,
)


def offer_file(folder: Path, text: str) -> Path:
    path = folder / "offer.toml"
    path.write_text(text)
    return path


def test_an_offer_file_says_it_all(tmp_path: Path) -> None:
    offer = load_offer(
        offer_file(
            tmp_path,
            """
            gpu_backend = "NVIDIA"
            gpu_type = "A100"
            cpu_count = 16
            memory_gb = 64.5
            hostname = "box"
            python = "3.13"
            os = "plan9"
            arch = "riscv64"
            [[devices]]
            index = 0
            uuid = "GPU-a"
            vram_gb = 40.0
            [[devices]]
            index = 1
            uuid = "GPU-b"
            vram_gb = 80
            [labels]
            zone = "eu"
            [gpu_info]
            driver = "550"
            """,
        )
    )
    assert (offer.gpu_backend, offer.gpu_type, offer.gpu_count, offer.vram_gb) == ("nvidia", "A100", 2, 120.0)
    assert (offer.hostname, offer.python, offer.os, offer.arch) == ("box", "3.13", "plan9", "riscv64")
    assert offer.labels == {"zone": "eu"}
    assert [device.vram_mib for device in offer.offer().devices] == [40 * 1024, 80 * 1024]


def test_an_empty_offer_file_offers_nothing_but_knows_the_machine(tmp_path: Path) -> None:
    offer = load_offer(offer_file(tmp_path, ""))
    assert (offer.cpu_count, offer.memory_gb, offer.gpu_count, offer.disk_free_gb) == (0, 0, 0, 0)
    assert offer.gpu_backend == "cpu"
    here = machine.facts()
    assert (offer.hostname, offer.os, offer.arch, offer.python) == (here.hostname, here.os, here.arch, here.python)
    assert describe(offer) == []


def test_a_number_of_gpus_needs_no_list_of_them(tmp_path: Path) -> None:
    offer = load_offer(offer_file(tmp_path, 'gpu_backend = "metal"\ngpu_count = 2\nvram_gb = 32\n'))
    assert [device.vram_mib for device in offer.offer().devices] == [16 * 1024, 16 * 1024]


def test_devices_without_indices_are_numbered_in_their_order(tmp_path: Path) -> None:
    text = '[[devices]]\nname = "NVIDIA L4"\nvram_gb = 22\n' * 2
    offer = load_offer(offer_file(tmp_path, text))
    assert [device.index for device in offer.offer().devices] == [0, 1]
    assert (offer.gpu_count, offer.gpu_type, offer.vram_gb) == (2, "L4", 44.0)


@pytest.mark.parametrize(
    ("text", "key", "advice"),
    [
        ("cpu_counts = 4", "cpu_counts", "did you mean 'cpu_count'?"),
        ("cpu-count = 4", "cpu-count", "did you mean 'cpu_count'?"),
        ("Memory_GB = 4", "Memory_GB", "did you mean 'memory_gb'?"),
        ("zzz = 4", "zzz", "the valid ones are gpu_backend, "),
        ("[[devices]]\nvram = 4", "devices[0].vram", "did you mean 'vram_gb'?"),
        ('[gpu_info]\ndrivers = "1"', "gpu_info.drivers", "did you mean 'driver'?"),
        ("[[gpu_info.devices]]\nuid = 'x'", "gpu_info.devices[0].uid", "did you mean 'uuid'?"),
        ('cpu_count = "4"', "cpu_count", "Expected `float`, got `str`"),
        ("cpu_count = true", "cpu_count", "Expected `float`, got `bool`"),
        ("cpu_count = -1", "cpu_count", ">= 0"),
        ("memory_gb = inf", "memory_gb", "not an amount"),
        ("[[devices]]\nvram_gb = nan", "devices[0].vram_gb", "not an amount"),
        ("gpu_count = 1.5", "gpu_count", "Expected `int`, got `float`"),
        ("gpu_count = 1000000", "gpu_count", "<= 1024"),
        ("gpu_count = 2\n[[devices]]\nvram_gb = 1", "gpu_count", "1 devices are listed"),
        ("devices = 3", "devices", "Expected `array`, got `int`"),
        ("[[devices]]\nindex = 1\n[[devices]]\nindex = 1", "devices", "two devices have one index"),
        ("[labels]\nzone = 1", "labels.zone", "write it in quotes"),
        ('gpu_backend = "nvdia"', "gpu_backend", "did you mean 'nvidia'?"),
        ('gpu_backend = "abacus"', "gpu_backend", "the valid ones are cpu, nvidia, "),
    ],
)
def test_a_bad_offer_file_is_refused_by_file_key_and_advice(tmp_path: Path, text: str, key: str, advice: str) -> None:
    path = offer_file(tmp_path, text)
    with pytest.raises(BadInput) as refused:
        load_offer(path)
    assert str(refused.value).startswith(f"{path}: {key}: ")
    assert advice in str(refused.value)
    assert refused.value.errors[0][0] == key


def test_every_unknown_key_of_an_offer_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        load_offer(offer_file(tmp_path, "cpus = 1\nmemory = 2\n"))
    assert [key for key, _ in refused.value.errors] == ["cpus", "memory"]


def test_an_offer_file_that_is_not_toml_is_refused_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="line 2"):
        load_offer(offer_file(tmp_path, "cpu_count = 1\nmemory_gb = \n"))


def test_an_offer_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        load_offer(tmp_path / "offer.toml")
