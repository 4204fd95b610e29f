"""A lease is as old as what the worker has sent and the hub is known to have got, not as what the hub then said."""

import asyncio
import time
from pathlib import Path

import pytest
from tests.worker.conftest import running_worker
from tests.worker.scripted_hub import ScriptedHub

LATE_S = 0.1
STOOD_STILL_S = 100.0
"""More than the lease, and less than the shortest grace of the hub for what must run alone."""


async def test_contact_counts_from_when_the_answered_heartbeat_was_sent(hub: ScriptedHub, tmp_path: Path) -> None:
    hub.acknowledges.discard("heartbeat")
    async with running_worker(hub.url, tmp_path / "w1", heartbeat_s=1.0) as worker:
        ages: list[float] = []
        renew = worker.runtime.renew

        async def told(age_s: float) -> None:
            ages.append(age_s)
            await renew(age_s)

        worker.runtime.renew = told  # type: ignore[method-assign]
        await hub.next("ready_for_work")
        await hub.assign("a1", "sleep", "600")
        await hub.next("job_accepted")
        while not ages:  # an answer that comes after the next heartbeat says nothing any more
            beat = await hub.next("heartbeat")
            await asyncio.sleep(LATE_S)
            await hub.send("ack", of="heartbeat", sent_at=beat["sent_at"])
            await hub.send("job_cancel", task_id="nothing", attempt="of this", reason="")
            await hub.next("job_result")  # by now the answer has been read, too
        assert ages[0] >= LATE_S


async def test_an_order_that_lay_unread_while_the_worker_stood_still_is_not_carried_out_past_the_hubs_grace(
    hub: ScriptedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_the_kernel = time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: of_the_kernel(clock) - STOOD_STILL_S * (clock == time.CLOCK_BOOTTIME)
    )
    async with running_worker(hub.url, tmp_path / "w1", heartbeat_s=600.0) as worker:
        await hub.next("ready_for_work")
        monkeypatch.undo()
        await hub.assign("a1", "sleep", "600", on_lost_contact="stop")
        result = await hub.next("job_result")
        assert (result["state"], result["fault"]) == ("returned", "worker")
        assert result["error"] == "stopped, because contact with the hub was lost"
        assert not (worker.runtime.folder("a1") / "log").exists()
