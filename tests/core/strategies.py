"""Random fleets and requests, small enough that they meet."""

from typing import Any

from hypothesis import strategies as st
from tests.core.core_fleet import capabilities

from ostler.domain.worker import Capabilities

BACKENDS = ("nvidia", "metal", "cpu")
TYPES = ("", "A100", "L4", "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA L4")
VALUES = ("eu", "us", "550", "550.0", "99", "-5", "550.54.15")
RULES = ("zone = eu", "driver >= 100", "driver = 550", "zone <= 99", "zone exists")


def offers() -> st.SearchStrategy[Capabilities]:
    amounts = st.one_of(st.integers(1, 64), st.floats(0.25, 700, allow_nan=False))
    return st.builds(
        _offer,
        st.sampled_from(BACKENDS),
        st.lists(st.one_of(st.sampled_from([8, 16, 24, 80]), st.floats(1, 90)), max_size=4),
        st.sampled_from(TYPES),
        amounts,
        amounts,
        st.dictionaries(st.sampled_from(["zone", "driver"]), st.sampled_from(VALUES), max_size=2),
    )


def _offer(
    backend: str, devices: list[float], gpu_type: str, cores: float, memory: float, labels: dict[str, str]
) -> Capabilities:
    if backend == "cpu":
        devices, gpu_type = [], ""
    return capabilities(backend=backend, devices=devices, gpu_type=gpu_type, cores=cores, memory=memory, labels=labels)


def needs() -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a spec."""
    return st.fixed_dictionaries(
        {},
        optional={
            "gpu_count": st.integers(0, 5),
            "gpu_type": st.sampled_from(["", "a100", "h100", "nvidia a100-sxm4-80gb", "h100|nvidia l4"]),
            "gpu_backend": st.sampled_from(["", *BACKENDS]),
            "min_vram_gb": st.one_of(st.sampled_from([0, 6, 24, 100]), st.floats(0, 100)),
            "min_cpu_cores": st.one_of(st.sampled_from([0, 1, 80]), st.floats(0, 100)),
            "min_memory_gb": st.one_of(st.sampled_from([0, 1, 900]), st.floats(0, 900)),
            "labels": st.lists(st.sampled_from(RULES), max_size=2, unique=True),
        },
    )


def greedy_needs() -> st.SearchStrategy[dict[str, Any]]:
    """More than most machines have, of one thing alone."""
    return st.one_of(
        st.fixed_dictionaries({"gpu_count": st.integers(2, 9)}),
        st.fixed_dictionaries({"gpu_count": st.integers(1, 3), "min_vram_gb": st.floats(50, 400)}),
        st.fixed_dictionaries({"min_vram_gb": st.floats(5, 100)}),
        st.fixed_dictionaries({"min_cpu_cores": st.floats(10, 800)}),
        st.fixed_dictionaries({"min_memory_gb": st.floats(10, 800)}),
        st.fixed_dictionaries({"labels": st.just(["zone = eu", "driver >= 100"])}),
        st.fixed_dictionaries({"gpu_count": st.just(1), "gpu_type": st.just("h100")}),
        st.fixed_dictionaries({"gpu_backend": st.just("metal")}),
    )
