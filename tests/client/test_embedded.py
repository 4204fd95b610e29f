"""The parts of an embedded fleet that need no process."""

import tomllib
from typing import Any

import pytest

import ostler
from ostler.client.embedded import to_toml


@pytest.mark.parametrize(
    "offer",
    [
        {"cpu_count": 8, "memory_gb": 1.5, "gpu_backend": "nvidia"},
        {"labels": {"zone": 'e"u', "a.b": "c"}, "cpu_count": 2},
        {"devices": [{"index": 0, "vram_gb": 24.0}, {"index": 1, "vram_gb": 80}], "gpu_count": 2},
        {"gpu_info": {"gpu_type": "A100", "devices": [{"uuid": "GPU-1"}]}},
        {},
    ],
)
def test_an_offer_is_written_as_toml_that_says_the_same(offer: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(offer)) == offer


def test_offers_and_workers_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="3 workers and 2 offers"):
        ostler.local(workers=3, offer=[{}, {}])


def test_the_client_offers_what_it_names() -> None:
    import ostler.client

    for name in dir(ostler.client):
        assert getattr(ostler.client, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ostler.client.nothing  # noqa: B018
