"""What the benchmarks say of what they find: a peer that fails, what got slower, a line that grows."""

import xml.etree.ElementTree as ElementTree

import psutil
import pytest
from benchmarks.peers import runs
from benchmarks.peers.runs import BARE, OSTLER, Found, System, run
from benchmarks.peers.table import page
from benchmarks.plot import Line, draw
from tests.process_fleet import until

from benchmarks import bench


def found(system: System, facts: dict[int, list[dict[str, object]]]) -> Found:
    made = Found(system)
    for number, told in facts.items():
        for fact in told:
            made.hear(fact, number)
    return made


def rate(work: str, per_s: float, way: str = "") -> dict[str, object]:
    return {"work": work, "way": way, "count": 10, "per_s": per_s}


def is_gone(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_peer_that_cannot_be_run_is_a_row_that_says_why_and_has_no_further_rounds() -> None:
    absent = Found(System("Absent", "benchmarks.peers.on_nothing"))
    run(absent, {"W1": 10}, 0, 30.0)
    assert "on_nothing" in absent.failed
    text = page([found(BARE, {}), found(OSTLER, {0: [rate("W1", 100.0)]}), absent], 1)
    assert any(line.startswith("| Absent") and "on_nothing" in line for line in text.splitlines())


def test_a_peer_that_runs_past_its_deadline_is_ended_with_its_children_and_what_it_told_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs, "LEAVE_S", 0.1)
    stuck = Found(System("Stuck", "tests.benchmarks.stuck_peer"))
    run(stuck, {"W1": 10}, 0, 3.0)
    assert stuck.failed == "not done after 3 s"
    assert stuck.figures["W1", "", "per_s"].by_round == {0: 100.0}
    child = int(stuck.figures["W1", "", "child"].by_round[0])
    until(lambda: is_gone(child), "what it has started is gone")


def test_the_ratio_is_taken_within_each_round_to_whoever_was_fastest_in_it() -> None:
    ours = found(OSTLER, {0: [rate("W1", 300.0)], 1: [rate("W1", 100.0)], 2: [rate("W1", 400.0)]})
    one = found(System("One", "one"), {0: [rate("W1", 100.0)], 1: [rate("W1", 100.0)], 2: [rate("W1", 100.0)]})
    two = found(System("Two", "two"), {0: [rate("W1", 50.0)], 1: [rate("W1", 50.0)], 2: [rate("W1", 200.0)]})
    text = page([found(BARE, {}), ours, one, two], 3)
    assert "2.00 (1.00..3.00)" in text


def test_calls_of_actors_have_a_line_of_their_own_and_what_calls_nothing_is_not_compared() -> None:
    ours = found(OSTLER, {0: [rate("W2", 200.0, "map")]})
    ray = found(System("Ray", "ray"), {0: [rate("W2", 100.0, "tasks"), rate("W2", 400.0, "actors")]})
    queue = found(System("HyperQueue", "hyperqueue"), {0: [rate("W2", 900.0, "no process")]})
    rows = [line for line in page([found(BARE, {}), ours, ray, queue], 1).splitlines() if line.startswith("| W2")]
    assert "2.00" in rows[0] and "met" in rows[0]
    assert "0.50" in rows[1] and "missed" in rows[1]


def test_what_got_worse_by_more_than_a_fifth_is_said_whichever_way_it_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = {key: [100.0] for key in bench.FIGURES}
    last = dict.fromkeys(bench.FIGURES, 100.0)
    assert bench.compare(now, last) == []
    worse = bench.compare(now | {"jobs": [80.0], "alone": [130.0], "calls": [90.0], "spawns": [10.0]}, last)
    assert [line.split(":")[0] for line in worse] == [bench.FIGURES[key].title for key in ("jobs", "alone")]
    assert "1.25 times" in worse[0] and "1.30 times" in worse[1]
    assert "recorded" in capsys.readouterr().out


def test_a_plot_is_a_picture_in_which_a_cost_that_does_not_grow_is_level() -> None:
    line = Line("all", [10, 100, 1000], [5.0, 5.0, 5.0], [(4.0, 6.0)] * 3)
    picture = ElementTree.fromstring(draw("Costs & sizes", "workers", "µs", [line]))
    dots = [one.attrib for one in picture.iter("{http://www.w3.org/2000/svg}circle")]
    assert len({dot["cy"] for dot in dots}) == 1
    places = [float(dot["cx"]) for dot in dots]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)
