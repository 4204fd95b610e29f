"""`resources` as people write it, and the ValueErrors for what cannot be meant."""

from typing import Any

import pytest

from ostler.client.errors import BadResources
from ostler.client.resources import Options, resource_fields, spec_fields
from ostler.domain.errors import OstlerError


@pytest.mark.parametrize(
    ("resources", "fields"),
    [
        ({}, {}),
        ({"cpu": 2}, {"min_cpu_cores": 2.0}),
        ({"cpu": 0.5, "gpu": 0}, {"min_cpu_cores": 0.5, "gpu_count": 0}),
        ({"memory": "8g"}, {"min_memory_gb": 8.0}),
        ({"memory": "512m"}, {"min_memory_gb": 0.5}),
        ({"memory": "1.5TiB"}, {"min_memory_gb": 1536.0}),
        ({"memory": 2 * 1024**3}, {"min_memory_gb": 2.0}),
        ({"vram": "16gb", "gpu": 1, "gpu_type": "A100"}, {"min_vram_gb": 16.0, "gpu_count": 1, "gpu_type": "A100"}),
        ({"vram": "auto", "memory": "auto"}, {"min_vram_gb": "auto", "min_memory_gb": "auto"}),
        ({"gpu_share": 0.5, "gpu_type": "A100|H100"}, {"gpu_share": 0.5, "gpu_type": "A100|H100"}),
        ({"backend": "NVIDIA", "nodes": 1}, {"gpu_backend": "nvidia", "node_count": 1}),
        ({"labels": ["zone=eu", "driver >= 550"]}, {"labels": ["zone = eu", "driver >= 550"]}),
        ({"labels": {"zone": "eu"}}, {"labels": ["zone = eu"]}),
        ({"labels": "nvlink exists"}, {"labels": ["nvlink exists"]}),
    ],
)
def test_each_key_becomes_the_field_of_the_spec(resources: dict[str, Any], fields: dict[str, Any]) -> None:
    assert resource_fields(resources) == fields


@pytest.mark.parametrize(
    ("key", "meant"),
    [("gpus", "gpu"), ("mem", "memory"), ("CPU", "cpu"), ("gputype", "gpu_type"), ("ram", "memory"), ("cores", "cpu")],
)
def test_an_unknown_key_is_named_with_the_nearest_one(key: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"unknown key '{key}'; did you mean '{meant}'"):
        resource_fields({key: 1})


def test_an_unknown_key_that_is_near_to_nothing_is_told_all_there_is() -> None:
    with pytest.raises(ValueError, match="unknown key 'xyzzy'; known are cpu, memory, gpu, gpu_type"):
        resource_fields({"xyzzy": 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[(key, "") for key in ("cpu", "memory", "gpu", "gpu_type", "backend", "vram", "nodes", "labels")],
        *[(key, None) for key in ("cpu", "memory", "gpu", "gpu_type", "backend", "vram", "nodes", "labels")],
        *[(key, -1) for key in ("cpu", "memory", "gpu", "gpu_type", "backend", "vram", "nodes", "labels")],
        *[(key, True) for key in ("cpu", "memory", "gpu", "vram", "nodes")],
        *[(key, float("nan")) for key in ("cpu", "memory", "gpu", "vram", "nodes")],
        *[(key, float("inf")) for key in ("cpu", "memory", "vram")],
        ("cpu", "2"),
        ("gpu", 0.5),
        *[("gpu_share", value) for value in (0, 1, -0.5, "0.5", None, True, float("nan"))],
        ("gpu", "1"),
        ("gpu_type", "  "),
        ("memory", "8 apples"),
        ("memory", "-8g"),
        ("vram", ["16g"]),
        ("backend", "cuda"),
        ("nodes", 0),
        ("labels", [1]),
        ("labels", ["zone eu"]),
    ],
)
def test_a_wrong_value_is_a_value_error_that_names_the_key(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"'{key}'"):
        resource_fields({key: value})


def test_a_wrong_backend_is_told_the_right_one() -> None:
    with pytest.raises(ValueError, match="did you mean 'nvidia'"):
        resource_fields({"backend": "cuda"})


@pytest.mark.parametrize("resources", ["gpu", ["gpu"], 3])
def test_resources_that_are_no_dictionary_are_a_value_error(resources: Any) -> None:
    with pytest.raises(ValueError, match="resources must be a dictionary"):
        resource_fields(resources)


def test_the_error_is_also_one_of_ours_so_that_one_except_is_enough() -> None:
    with pytest.raises(OstlerError) as caught:
        resource_fields({"gpu": -1})
    assert isinstance(caught.value, BadResources)
    assert caught.value.errors == [("resources['gpu']", "must be a whole number, 0 or more")]


def test_options_become_fields_and_labels_of_both_places_are_joined() -> None:
    options: Options = {
        "name": "mlp",
        "tier": "training",
        "priority": 3,
        "env": {"A": "b"},
        "scheduling_timeout_seconds": 300,
        "resources": {"cpu": 1, "labels": ["zone = eu"]},
        "labels": {"rack": "7"},
        "max_retries": None,
    }
    assert spec_fields(options, "submit") == {
        "name": "mlp",
        "job_tier": "training",
        "priority": 3,
        "env": {"A": "b"},
        "scheduling_timeout_seconds": 300,
        "min_cpu_cores": 1.0,
        "labels": ["zone = eu", "rack = 7"],
    }


def test_an_unknown_option_is_a_type_error_with_the_nearest_one() -> None:
    with pytest.raises(
        TypeError, match=r"submit_command\(\) got an unexpected option 'resorces'; did you mean 'resources'"
    ):
        spec_fields({"resorces": {}}, "submit_command")  # type: ignore[typeddict-unknown-key]
