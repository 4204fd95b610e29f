"""How long a pull worker keeps a task of which the hub acknowledges nothing."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostler import pull
from ostler.domain.scheduling import CLAIM_LEASE_S, LEAST_CLAIM_LEASE_S


@pytest.mark.parametrize("lease_s", [LEAST_CLAIM_LEASE_S, CLAIM_LEASE_S])
def test_a_task_that_is_cut_off_is_stopped_so_early_that_sigkill_comes_before_the_lease_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease_s: float
) -> None:
    now = 1000.0
    monkeypatch.setattr(pull, "_clock", lambda: now)
    options = Namespace(hostname="pi", cut_off_seconds=0.0, heartbeat_seconds=30.0)
    client = SimpleNamespace(claimed_at=now)
    worker: Any = SimpleNamespace(client=client, options=options, folder=tmp_path, leave_at=pull.NEVER)
    task = pull.Task(worker, {"job_id": "j", "attempt": "a", "lease_s": lease_s})
    now += lease_s - pull.GRACE_S - 20.5
    task._check()
    now += 0.5
    with pytest.raises(pull.Lost, match="cut off from the hub"):
        task._check()


def test_the_shortest_lease_leaves_time_for_two_heartbeats() -> None:
    assert LEAST_CLAIM_LEASE_S - pull.GRACE_S - pull.SPARE_S > 2 * 30.0
