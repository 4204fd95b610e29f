"""Tasks sent ahead, over real processes: they go on without their worker, none is lost, and none runs twice."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.paddock import Paddock, paddock, until

COUNT = 12
PROGRAM = """
echo "begin $OSTLER_TASK_ID" >> "$DIARY"
while [ ! -e "$GATE" ]; do sleep 0.05; done
echo "end $OSTLER_TASK_ID" >> "$DIARY"
"""


class Work:
    """An array on a worker of two slots: two of its tasks are held up at a gate, and the others wait behind them there,
    because all that ran before were over in a moment."""

    def __init__(self, yard: Paddock, folder: Path) -> None:
        self.yard = yard
        self.diary, self.gate = folder / "diary", folder / "gate"
        self.gate.touch()
        yard.fleet.wait(self._submit(30), timeout=30)
        self.gate.unlink()
        self.diary.write_text("")
        self.id = self._submit(COUNT)
        until(lambda: len(self.seen("begin")) == 2, "two have begun")
        self.names = [f"{self.id}.{index}" for index in range(COUNT)]
        whys = [yard.hub.job(name)["attempts"][0]["why"] for name in self.names]
        assert sum(why.startswith("sent ahead") for why in whys) == COUNT - 2

    def _submit(self, count: int) -> str:
        env = {"DIARY": str(self.diary), "GATE": str(self.gate)}
        job_id: str = self.yard.hub.submit({"command": ["sh", "-c", PROGRAM], "array": count, "env": env})["id"]
        return job_id

    def seen(self, word: str) -> Counter[str]:
        pairs = (line.split() for line in self.diary.read_text().splitlines())
        return Counter(name for what, name in pairs if what == word)

    def check(self) -> None:
        """Each ran once, in the attempt that it was sent with, and is told once."""
        ended = self.yard.fleet.wait(self.id, timeout=30)
        assert (ended["state"], ended["counts"]) == ("succeeded", {"succeeded": COUNT})
        once = dict.fromkeys(self.names, 1)
        assert (self.seen("begin"), self.seen("end")) == (once, once)
        assert {name: len(self.yard.hub.job(name)["attempts"]) for name in self.names} == once
        assert self.yard.ends_told(self.id) == dict.fromkeys([self.id, *self.names], ["succeeded"])
        self.yard.await_free("box")


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with paddock(tmp_path, "box", offer={"cpu_count": 2}) as yard:
        yield Work(yard, tmp_path)


@pytest.mark.parametrize("name", ["box", "hub"])
def test_those_sent_ahead_go_on_without_it_and_each_runs_once(work: Work, name: str) -> None:
    work.yard.kill(name)
    work.gate.touch()
    until(lambda: len(work.seen("end")) == COUNT, "all have run")
    work.yard.start_again(name)
    work.check()


def test_a_worker_that_comes_back_before_they_began_gives_them_back_and_each_runs_once(work: Work) -> None:
    work.yard.kill("box")
    work.yard.start_again("box")
    until(
        lambda: {work.yard.hub.job(name)["state"] for name in work.names} <= {"running", "assigned", "pending"}, "back"
    )
    work.gate.touch()
    ended = work.yard.fleet.wait(work.id, timeout=30)
    assert (ended["state"], ended["counts"]) == ("succeeded", {"succeeded": COUNT})
    once = dict.fromkeys(work.names, 1)
    assert (work.seen("begin"), work.seen("end")) == (once, once)
    work.yard.await_free("box")
