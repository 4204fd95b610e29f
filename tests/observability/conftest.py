"""One embedded fleet whose hub tells a collector what became of jobs."""

from collections.abc import Iterator

import pytest
from tests.observability.receiver import Collector, collecting

import ostler
from ostler.client import Fleet

OFFER = {"cpu_count": 4, "memory_gb": 4, "gpu_count": 1, "gpu_backend": "nvidia", "vram_gb": 24}


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="session")
def fleet(collector: Collector) -> Iterator[Fleet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        with ostler.local(slots=4, offer=OFFER) as fleet:
            yield fleet
