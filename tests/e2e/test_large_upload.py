"""A large artifact through a real hub: it passes the hub's disk, not its memory."""

import shutil
import sys
from pathlib import Path

import pytest
from benchmarks.upload import MIB, Bundle, ProcessHub, bring, fetch

SIZE = 256 * MIB
MOST_GROWTH_MIB = 40


@pytest.mark.skipif(sys.platform != "linux", reason="the most memory that a process ever had is told by /proc")
def test_a_large_artifact_does_not_pass_through_memory_and_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    bundle = Bundle(SIZE, 1)
    hub = ProcessHub(tmp_path)
    try:
        idle = hub.peak_mib()
        first = bring(hub, bundle)
        assert SIZE // 4 <= first <= SIZE // 2 + MIB, "what had come before the cut was not sent again"
        stored = tmp_path / "artifacts" / "objects" / bundle.sha256[:2] / bundle.sha256
        assert stored.stat().st_size == SIZE
        fetch(hub, bundle)
        assert hub.peak_mib() - idle < MOST_GROWTH_MIB
    finally:
        hub.stop()
        shutil.rmtree(tmp_path / "artifacts")  # pytest keeps what tests leave
