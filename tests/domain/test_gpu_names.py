"""The short type of a GPU, and the names by which a job may ask for it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostler.domain.gpu_names import common_type, gpu_type, is_named, names_of
from ostler.domain.resources import Request

TYPES = {
    "NVIDIA A100-SXM4-80GB": "A100",
    "NVIDIA A100 80GB PCIe": "A100",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H100 NVL": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA GH200 144G HBM3e": "GH200",
    "Tesla V100-SXM2-16GB": "V100",
    "Tesla T4": "T4",
    "NVIDIA L40S": "L40S",
    "NVIDIA H20-3e": "H20-3e",
    "NVIDIA GeForce RTX 4090": "RTX4090",
    "NVIDIA GeForce RTX 3090 Ti": "RTX3090Ti",
    "NVIDIA GeForce GTX 1080 Ti": "GTX1080Ti",
    "NVIDIA RTX A6000": "RTXA6000",
    "Quadro RTX 8000": "RTX8000",
    "NVIDIA RTX 6000 Ada Generation": "RTX6000Ada",
    "NVIDIA GB10": "GB10",
    "NVIDIA DGX Spark/GB10": "GB10",
    "Orin (nvgpu)": "Orin",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "A100-1g.5gb",
    "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb": "A100-1g.5gb",
    "NVIDIA A100 80GB PCIe MIG 1g.10gb+me": "A100-1g.10gb+me",
    "nvidia_a100-sxm4-40gb": "a100",
    "nvidia_a100_80gb_pcie": "a100",
    "tesla_v100-sxm2-32gb": "v100",
    "AMD Instinct MI250X": "MI250X",
    "AMD Instinct MI300X": "MI300X",
    "AMD Radeon RX 6800 XT (RADV NAVI21)": "RX6800XT",
    "Intel(R) Arc(TM) A770 Graphics (DG2)": "A770",
    "Apple M2 Pro": "M2Pro",
    "Apple M2 Max": "M2Max",
    "AMD Radeon Graphics (RADV RENOIR)": "AMDRadeonGraphics",
    "NVIDIA": "NVIDIA",
    "": "",
}


@pytest.mark.parametrize(("name", "short"), TYPES.items())
def test_a_gpu_is_asked_for_by_its_short_name(name: str, short: str) -> None:
    assert gpu_type(name) == short
    assert gpu_type(short) == short, "the hub shortens what a worker has shortened before"


@pytest.mark.parametrize("name", [name for name in TYPES if name])
def test_a_gpu_is_asked_for_by_its_type_and_by_its_full_name_in_any_case(name: str) -> None:
    short, longer = names_of(name, [])
    for wanted in (name, TYPES[name], f"h999|{TYPES[name]}"):
        for cased in (wanted, wanted.lower(), wanted.upper()):
            assert Request(gpu_type=cased.lower()).accepts_type(short, longer), cased
    assert not Request(gpu_type="h999").accepts_type(short, longer)


@pytest.mark.parametrize(
    ("announced", "devices", "accepted", "refused"),
    [
        ("A100", ["NVIDIA A100-SXM4-80GB"] * 2, ["a100", "nvidia a100-sxm4-80gb", "a100-sxm4-80gb"], ["a100-80gb"]),
        ("NVIDIA A100-SXM4-80GB", [], ["a100", "nvidia a100-sxm4-80gb"], ["nvidia a100-sxm4-40gb", "nvidia a100 80gb pcie"]),
        ("A100", [], ["a100", "nvidia a100"], ["nvidia a100-sxm4-80gb"]),
        ("A100-80GB", ["NVIDIA A100-SXM4-80GB"], ["a100", "a100-80gb", "nvidia a100-sxm4-80gb"], ["a100-40gb"]),
        ("A100", ["NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"], ["a100"], ["nvidia a100-sxm4-80gb"]),
        ("", ["NVIDIA L4", "NVIDIA L4"], ["l4", "nvidia l4"], ["l40"]),
        ("", ["NVIDIA L4", "NVIDIA A100-SXM4-80GB"], [], ["l4", "a100", "nvidia l4"]),
        ("", [], [], ["a100"]),
        ("reserved", ["NVIDIA L4"], ["reserved"], ["l4", "nvidia l4"]),
        ("NVIDIA GeForce RTX 4090", [], ["rtx4090", "rtx 4090", "rtx-4090", "geforce_rtx_4090"], ["4090", "rtx 4090 ti"]),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", [], ["a100-1g.5gb", "nvidia a100-sxm4-40gb mig 1g.5gb"], ["a100"]),
        ("NVIDIA DGX Spark/GB10", [], ["gb10", "nvidia gb10", "nvidia dgx spark/gb10"], ["dgx spark"]),
    ],
)  # fmt: skip
def test_the_names_of_a_machine_are_its_type_and_the_longer_names_of_all_its_gpus(
    announced: str, devices: list[str], accepted: list[str], refused: list[str]
) -> None:
    short, longer = names_of(announced, devices)
    assert [name for name in accepted if not is_named(name, (short, *longer))] == []
    assert [name for name in refused if is_named(name, (short, *longer))] == []


def test_gpus_of_different_types_have_no_common_one() -> None:
    assert common_type(["NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"]) == "A100"
    assert common_type(["NVIDIA L4", "NVIDIA A100-SXM4-80GB"]) == ""
    assert common_type([]) == ""


words = st.sampled_from(
    ["NVIDIA", "Tesla", "A100", "SXM4", "80GB", "MIG", "1g.5gb", "RTX", "4090", "DGX", "x/y", "(R)"]
)
texts = st.one_of(
    st.text(max_size=20), st.lists(words, max_size=5).map(" ".join), st.lists(words, max_size=5).map("-".join)
)


@example("(0)", ["0"])
@given(texts, st.lists(texts, max_size=2))
def test_any_announced_name_with_a_letter_or_a_digit_is_one_by_which_a_job_may_ask(
    name: str, devices: list[str]
) -> None:
    short, longer = names_of(name, devices)
    names = (short, *longer)
    if short and "|" not in name:
        assert is_named(name.lower(), names) or not any(letter.isalnum() for letter in name)
