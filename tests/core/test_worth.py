"""What room is worth, how that is learnt, and that scores which are kept are those that would be computed anew."""

import subprocess
import sys
from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.core_fleet import CoreFleet, capabilities

from ostler.core.fleet import Fleet, Worker
from ostler.core.index import Index
from ostler.core.match import unmet
from ostler.core.placing import board, choose, columns, mix
from ostler.core.placing import worth as learnt_worth
from ostler.core.placing.board import Board
from ostler.core.placing.mix import Mix
from ostler.core.placing.packing import worth_of_rests
from ostler.core.placing.score import leftover, loss
from ostler.core.placing.worth import SCALE, WHOLE, Asked, Kind, Machine, Worth, build
from ostler.domain.resources import Request

T = TypeVar("T")
A100, T4 = Kind("nvidia", "a100", 81920), Kind("nvidia", "t4", 16384)


def result(slices: Generator[int, None, T]) -> T:
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def worth(*asked: Asked, machines: dict[Machine, int] | None = None, turnover: float = 0.0) -> Worth:
    return result(build(list(asked), machines or {Machine(A100, 8, 64_000): 2}, turnover))


def test_a_rest_is_worth_what_can_still_be_cut_from_it() -> None:
    halves = result(worth_of_rests({500: 7.0}))
    assert [halves[left] for left in (0, 490, 500, 990, 1000)] == [0, 0, 500, 500, 1000]
    thirds = result(worth_of_rests({320: 3.0}))
    assert [thirds[left] for left in (310, 320, 640, 959, 960)] == [0, 333, 667, 667, 1000]
    assert result(worth_of_rests({})) == list(range(1001))


def test_a_size_that_fills_up_what_another_leaves_has_a_price() -> None:
    both = result(worth_of_rests({600: 5.0, 400: 6.0}))
    assert both[400] == both[600] == 500 and both[390] == 0


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(1, 999), st.floats(0.1, 50), max_size=30), st.integers(0, 1000), st.integers(0, 1000)
)
def test_two_rests_are_never_worth_more_than_both_in_one(wanted: dict[int, float], one: int, other: int) -> None:
    rests = result(worth_of_rests(wanted))
    assert rests == sorted(rests) and len(rests) == 1001 and rests[-1] == 1000
    if one + other <= 1000:
        assert rests[one] + rests[other] <= rests[one + other] + 1


def test_gpus_without_the_cores_to_feed_them_are_worth_less() -> None:
    learnt = worth(Asked(Request(gpu_count=1, cores_milli=8000), 1.0))
    fed, starved, idle = (learnt.of(A100, cores, [WHOLE] * 4) for cores in (32_000, 8000, 0))
    assert fed > starved > idle


def test_a_machine_that_loses_its_last_whole_device_loses_what_eight_gpus_need() -> None:
    learnt = worth(Asked(Request(gpu_count=8), 1.0), Asked(Request(gpu_count=1), 9.0))
    whole, broken = learnt.of(A100, 64_000, [WHOLE] * 8), learnt.of(A100, 64_000, [WHOLE] * 7 + [0])
    further = learnt.of(A100, 64_000, [WHOLE] * 6 + [0, 0])
    assert whole - broken > broken - further


BOTH = {Machine(A100, 8, 64_000): 1, Machine(T4, 8, 64_000): 3}
PICKY, EASY = Asked(Request(gpu_count=1, gpu_type="a100"), 1.0), Asked(Request(gpu_count=1, cores_milli=2000), 3.0)


def test_a_type_is_kept_for_those_who_insist_on_it_when_they_will_need_what_is_free() -> None:
    learnt, kept = worth(PICKY, EASY, machines=BOTH), []
    for free in (24, 8, 2, 0):
        learnt.press({A100: free, T4: 24})
        assert learnt.pressure.get(T4, 0) == 0
        kept.append(learnt.pressure[A100] / SCALE)
    assert kept == sorted(kept) and kept[0] < 0.2 and kept[-1] > 1
    learnt.press({A100: 8, T4: 0})
    assert learnt.pressure[A100] / SCALE < 0.01, "nobody is kept off who has nowhere else to go"


def test_a_type_that_nobody_insists_on_is_not_kept() -> None:
    either = worth(Asked(Request(gpu_count=1, gpu_type="a100|t4"), 1.0), machines=BOTH)
    either.press({A100: 0, T4: 24})
    assert not any(either.pressure.values())


def test_room_that_nobody_insists_on_is_worth_as_much_as_any() -> None:
    """Or it would be filled first, and no whole machine of it be left."""
    learnt = worth(PICKY, EASY, Asked(Request(gpu_count=8), 1.0), machines=BOTH)
    for free in ([WHOLE] * 8, [WHOLE] * 3, [WHOLE, 500]):
        assert learnt.of(A100, 64_000, free) == learnt.of(T4, 64_000, free)


def test_where_all_insist_a_type_is_worth_what_those_can_use_who_take_it() -> None:
    learnt = worth(PICKY, Asked(Request(gpu_count=4, gpu_type="t4"), 1.0), machines=BOTH)

    def last_of_four(kind: Kind) -> int:
        four, three, two = (learnt.of(kind, 64_000, [WHOLE] * free) for free in (4, 3, 2))
        return (four - three) - (three - two)

    assert last_of_four(T4) > 0 == last_of_four(A100)


def test_an_easy_job_takes_a_type_of_which_there_is_plenty_and_leaves_the_last_of_it() -> None:
    """One job in ten takes an A100 and nothing else."""
    core = CoreFleet()
    for number in range(8):
        core.worker(f"a{number}", gpus=1, vram=16, gpu_type="A100")
        core.worker(f"b{number}", gpus=1, vram=16, gpu_type="T4")
    for _ in range(12):
        for job in (core.submit(gpu_count=1, gpu_type="A100"), *(core.submit(gpu_count=1) for _ in range(9))):
            core.end(job)
    placed = [core.where(core.submit(gpu_count=1)) for _ in range(12)]
    assert placed[0] == "a0" and placed[-1].startswith("b")
    assert core.fleet.index.machines.free_gpus[Kind("nvidia", "a100", 16384)] > 0


def test_a_fleet_learns_what_it_is_asked_for_and_leaves_room_for_it() -> None:
    """Two T4s and two A100s; half of the jobs take an A100 and nothing else."""
    core = CoreFleet()
    for name, kind in (("a1", "A100"), ("a2", "A100"), ("b1", "T4"), ("b2", "T4")):
        core.worker(name, gpus=1, vram=16, gpu_type=kind)
    for _ in range(12):
        picky, easy = core.submit(gpu_count=1, gpu_type="A100"), core.submit(gpu_count=1)
        for job in (picky, easy):
            core.end(job)
    assert core.where(core.submit(gpu_count=1)) in ("b1", "b2")


def test_what_has_left_fades_and_what_is_there_counts() -> None:
    core = CoreFleet()
    core.worker("box", gpus=8, vram=640)
    shapes = {}
    for needs in ({"gpu_count": 1}, {"gpu_count": 2}):
        for _ in range(100):
            job = core.submit(**needs)
            shapes[needs["gpu_count"]] = core.fleet.jobs[job].shape
            core.end(job)
    assert 0 < shapes[1].lately < shapes[2].lately
    assert core.fleet.mix.turnover == 1.0


def test_what_is_remembered_stays_small_numbers_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, "MAX_UNIT", 10.0)
    core = CoreFleet()
    core.worker("box", gpus=1, vram=8)
    shape = None
    for _ in range(300):
        job = core.submit(gpu_count=1)
        shape = core.fleet.jobs[job].shape
        core.end(job)
    assert shape is not None and 40 < shape.lately < 700


GPUS = [capabilities(gpus=n, vram=16 * n, cores=8 * n, gpu_type=kind) for n in (1, 2, 4, 8) for kind in ("T4", "A100")]
OFFERS = [*GPUS, capabilities(cores=16), capabilities(devices=[8, 24, 24], cores=12)]
NEEDS: list[dict[str, Any]] = [
    {"gpu_count": 1, "min_cpu_cores": 4},
    {"gpu_count": 4},
    {"gpu_count": 1, "gpu_type": "A100"},
    {"gpu_count": 8, "min_cpu_cores": 60},
    {"gpu_share": 0.3, "min_cpu_cores": 2},
    {"gpu_share": 0.5, "gpu_type": "T4|A100"},
    {"min_vram_gb": 6, "min_cpu_cores": 1},
    {"min_cpu_cores": 3},
    {},
]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(OFFERS), min_size=6, max_size=14),
    st.lists(st.tuples(st.integers(0, len(NEEDS) - 1), st.integers(0, 3)), min_size=5, max_size=60),
)
def test_what_is_kept_of_scores_is_what_would_be_computed_anew(offers: list[Any], acts: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "FEW_STATES", 1)
        patch.setattr(board, "FORESEEN", 2)
        for module in (columns, learnt_worth):
            patch.setattr(module, "STEP", 1)
        core = CoreFleet(checked=False)
        for number, offer in enumerate(offers):
            core.register(f"w{number:02d}", offer, slots=64)
        running: list[str] = []
        for need, ends in acts:
            running.append(core.submit(**NEEDS[need]))
            for _ in range(min(ends, len(running)) if ends > 1 else 0):
                ended = running.pop(0)
                if core.where(ended):
                    core.end(ended)
            for shape in core.fleet.index.shapes():
                _compare(core.fleet, shape.request, shape.profile, core.fleet.index.workers_of(shape))


def _compare(fleet: Fleet, request: Request, profile: Request, workers: int) -> None:
    with_gpus = workers ^ (workers & fleet.index.machines.without_gpu)
    if not with_gpus:
        return
    kept = fleet.board.best(fleet.index, fleet.workers, profile, with_gpus)
    _, numbers, steps = fleet.board.scored(fleet.index, fleet.workers, profile, with_gpus)
    told = {fleet.index.names[number]: int(lost) for number, lost in zip(numbers, steps, strict=True)}
    anew: list[tuple[int, float, str]] = []
    for worker in fleet.workers.values():
        if fleet.index.bit_of(worker.id) & with_gpus:
            assert not unmet(request, worker, 0.0)
            lost = loss(fleet.board.worth, request, worker.room).steps
            anew.append((lost, leftover(profile, worker.room), worker.id))
    assert told == {name: lost for lost, _, name in anew}
    assert kept == min(anew)[2]


def test_a_fleet_of_many_machines_goes_over_to_what_it_has_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "FEW_STATES", 1)
    core = CoreFleet(checked=False)
    for number in range(12):
        core.worker(f"w{number:02d}", gpus=8, vram=128, cores=32 + number)
    first = core.fleet.board.worth
    for _ in range(60):
        job = core.submit(gpu_count=1)
        core.end(job)
    assert core.fleet.board.worth is not first
    assert core.fleet.board.worth.groups == [(1, WHOLE), (8, WHOLE)]


def test_what_a_worth_was_not_made_for_is_compared_all_the_same() -> None:
    """A kind of machine that joined since: only the rests of its GPUs count."""
    learnt = worth(Asked(Request(gpu_count=1), 1.0))
    assert learnt.of(T4, 8000, [WHOLE]) == learnt.rests[WHOLE]
    assert Board(Mix(Index())).worth.of(T4, 8000, [WHOLE, 500]) > 0


def test_a_job_that_one_worker_alone_could_take_says_so() -> None:
    core = CoreFleet()
    core.worker("small", cores=2)
    worker: Worker = core.worker("large", cores=64)
    job = core.submit(min_cpu_cores=32)
    [row] = core.ledger.attempts_of(job)
    assert row.why == f"{worker.id} scored best (no other open worker had capacity for it then)"


def test_only_a_hub_that_chooses_among_many_machines_loads_numpy() -> None:
    """It takes longer to load than most commands take to run."""
    code = "import sys, ostler.cli.main, ostler.worker.main, ostler.hub.main; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_fits_by_a_hair_and_seems_not_to_by_thousandths_is_scored_alike() -> None:
    core = CoreFleet(checked=False)
    core.worker("small", devices=[0.25, 0.25], labels={"is": "small"})
    for number in range(4):
        core.worker(f"large{number}", devices=[24] * (1 + number))
    core.submit(gpu_share=0.001, labels=["is = small"])
    core.submit(gpu_count=1, labels=["is = small"])
    for _ in range(40):
        core.end(core.submit(gpu_share=0.5, min_cpu_cores=1))
    shape = core.fleet.jobs[core.submit("hair", gpu_share=0.999, labels=["is = small"])].shape
    assert core.where("hair") == "small"
    core.end("hair")
    _compare(core.fleet, shape.request, shape.profile, core.fleet.index.workers_of(shape))
