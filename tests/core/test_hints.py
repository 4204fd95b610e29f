"""Which machines are told to fetch the files of a waiting job beforehand."""

from tests.core.core_fleet import CoreFleet

from ostler.core.effects import HintSnapshot

FILES = "0" * 64


def hinted(core: CoreFleet) -> list[tuple[str, str]]:
    """(task, worker) of each hint of the last turn."""
    return [(hint.task_id, hint.worker_id) for hint in core.of(HintSnapshot)]


def full(core: CoreFleet, *names: str, **offer: object) -> None:
    """Machines of one slot, on which something runs."""
    for name in names:
        core.worker(name, slots=1, **offer)
        core.start(core.submit(priority=10))


def test_a_hint_goes_to_the_machine_that_could_run_the_job() -> None:
    core = CoreFleet()
    full(core, "cpu")
    full(core, "gpu", gpus=1)
    core.submit("train", gpu_count=1, snapshot_id=FILES)
    assert hinted(core) == [("train", "gpu")]


def test_a_drained_machine_gets_no_hint() -> None:
    core = CoreFleet()
    full(core, "a", "b")
    core.drain("a")
    core.submit("job", snapshot_id=FILES)
    assert hinted(core) == [("job", "b")]
    core.drain("b")
    core.submit("other", snapshot_id="1" * 64)
    assert hinted(core) == []


def test_each_member_of_a_gang_has_a_machine_that_gets_a_hint() -> None:
    core = CoreFleet()
    full(core, "a", "b", "c")
    core.submit("gang", node_count=2, snapshot_id=FILES)
    assert hinted(core) == [("gang.0", "a"), ("gang.1", "b")]


def test_the_next_tasks_of_an_array_have_machines_that_get_hints() -> None:
    core = CoreFleet()
    full(core, "a", "b")
    core.worker("free", slots=1)
    core.submit("array", array=5, snapshot_id=FILES)
    assert core.where("array.0") == "free"
    assert hinted(core) == [("array.1", "a"), ("array.2", "b")], "free fetches the files for array.0"


def test_a_machine_that_has_the_files_needs_no_hint() -> None:
    core = CoreFleet()
    full(core, "a", snapshots=[FILES])
    full(core, "b")
    core.submit("one", snapshot_id=FILES)
    assert hinted(core) == []
    core.submit("array", array=2, snapshot_id=FILES)
    assert hinted(core) == [("array.0", "b")]


def test_a_job_that_waits_for_another_is_announced_when_that_has_succeeded() -> None:
    core = CoreFleet()
    core.worker("a", slots=1)
    core.submit("first")
    core.start("first")
    core.submit("second", depends_on=["first"], snapshot_id=FILES)
    assert hinted(core) == []
    core.submit("urgent", priority=1)
    core.end("first")
    assert core.where("urgent") == "a"
    assert hinted(core) == [("second", "a")]


def test_a_label_without_a_blob_is_fetched_nowhere() -> None:
    core = CoreFleet()
    full(core, "a")
    core.submit("job", snapshot_id="snap-2026")
    assert hinted(core) == []
