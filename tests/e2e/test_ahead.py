"""Tasks sent ahead, over real processes: they go on without their worker, none is lost, and none runs twice."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process_fleet import ProcessFleet, process_fleet, until

COUNT = 12
PROGRAM = """
echo "begin $OSTLER_TASK_ID" >> "$DIARY"
while [ ! -e "$GATE" ]; do sleep 0.05; done
echo "end $OSTLER_TASK_ID" >> "$DIARY"
"""


class Work:
    """An array on a worker of two slots: two of its tasks are held up at a gate, and the others wait behind them there,
    because all that ran before were over in a moment."""

    def __init__(self, fleet: ProcessFleet, folder: Path) -> None:
        self.fleet = fleet
        self.diary, self.gate = folder / "diary", folder / "gate"
        self.gate.touch()
        fleet.client.wait(self._submit(30), timeout=60)
        self.gate.unlink()
        self.diary.write_text("")
        self.id = self._submit(COUNT)
        until(lambda: len(self.seen("begin")) == 2, "two have begun")
        self.names = [f"{self.id}.{index}" for index in range(COUNT)]
        whys = [fleet.hub.job(name)["attempts"][0]["why"] for name in self.names]
        assert sum(why.startswith("sent ahead") for why in whys) == COUNT - 2

    def _submit(self, count: int) -> str:
        env = {"DIARY": str(self.diary), "GATE": str(self.gate)}
        job_id: str = self.fleet.hub.submit({"command": ["sh", "-c", PROGRAM], "array": count, "env": env})["id"]
        return job_id

    def seen(self, word: str) -> Counter[str]:
        pairs = (line.split() for line in self.diary.read_text().splitlines())
        return Counter(name for what, name in pairs if what == word)

    def check(self) -> None:
        """Each ran once, in the attempt that it was sent with, and is told once."""
        ended = self.fleet.client.wait(self.id, timeout=60)
        assert (ended["state"], ended["counts"]) == ("succeeded", {"succeeded": COUNT})
        once = dict.fromkeys(self.names, 1)
        assert (self.seen("begin"), self.seen("end")) == (once, once)
        assert {name: len(self.fleet.hub.job(name)["attempts"]) for name in self.names} == once
        assert self.fleet.ends_told(self.id) == dict.fromkeys([self.id, *self.names], ["succeeded"])
        self.fleet.await_free("box")


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with process_fleet(tmp_path, "box", offer={"cpu_count": 2}) as fleet:
        yield Work(fleet, tmp_path)


@pytest.mark.parametrize("name", ["box", "hub"])
def test_those_sent_ahead_go_on_without_it_and_each_runs_once(work: Work, name: str) -> None:
    work.fleet.kill(name)
    work.gate.touch()
    until(lambda: len(work.seen("end")) == COUNT, "all have run")
    work.fleet.start_again(name)
    work.check()


def test_a_worker_that_comes_back_before_they_began_gives_them_back_and_each_runs_once(work: Work) -> None:
    work.fleet.kill("box")
    work.fleet.start_again("box")
    until(
        lambda: {work.fleet.hub.job(name)["state"] for name in work.names} <= {"running", "assigned", "pending"}, "back"
    )
    work.gate.touch()
    ended = work.fleet.client.wait(work.id, timeout=60)
    assert (ended["state"], ended["counts"]) == ("succeeded", {"succeeded": COUNT})
    once = dict.fromkeys(work.names, 1)
    assert (work.seen("begin"), work.seen("end")) == (once, once)
    work.fleet.await_free("box")
