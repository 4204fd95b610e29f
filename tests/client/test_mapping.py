"""How a map asks for its calls' outcomes: nobody waits for what is there, and nobody is asked for what cannot be."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from ostler.client import mapping
from ostler.client.functions import Outcome
from ostler.client.mapping import Calls


class Hub:
    """One that has the values of so many calls by now, and a clock that its callers' waits move."""

    patience = 1.0

    def __init__(self, size: int, ended: Callable[[float], int], fit: int = 0) -> None:
        """`fit`: values are large, and so many of them are in one answer."""
        self.now = 1000.0
        self._fit = fit
        self.slept: list[float] = []
        self.woke_at = 0.0
        self.looks = 0
        self._size = size
        self._ended = ended

    def until(self, deadline: float | None) -> "Hub":
        return self

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now = self.woke_at = self.now + seconds

    def _count(self) -> int:
        return min(self._size, self._ended(self.now - 1000.0))

    def job(self, job_id: str, wait: float = 0.0) -> dict[str, Any]:
        self.looks += 1
        give_up = self.now + wait
        while self._count() < self._size and self.now < give_up:
            self.now += 0.001
        return {"id": job_id, "state": "succeeded" if self._count() == self._size else "running"}

    def tasks(self, job_id: str, *, after: int | None, limit: int, ended: bool) -> dict[str, Any]:
        first = 0 if after is None else after + 1
        page = range(first, min(self._count(), first + limit))
        rows = [{"index": index, "state": "succeeded", "value": None if self._fit else "AA=="} for index in page]
        return {"tasks": rows, "next": page[-1] if page and page[-1] + 1 < self._count() else None}

    def results(self, job_id: str, indices: list[int]) -> tuple[dict[int, bytes], list[int]]:
        self.now += 0.01
        return {index: bytes(100_000) for index in indices[: self._fit]}, indices[self._fit :]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Hub, int], float]:
    def run(hub: Hub, size: int, deadline: float | None = None, each_s: float = 0.0) -> float:
        """When the last has been read by somebody who takes so long for each."""
        monkeypatch.setattr(time, "monotonic", lambda: hub.now)
        monkeypatch.setattr(time, "sleep", hub.sleep)
        monkeypatch.setattr(mapping, "call_outcome", lambda *_: Outcome(value=None))
        calls = Calls(hub, "job", {"array": size})  # type: ignore[arg-type]
        told = 0
        for _ in calls.outcomes(deadline):
            told += 1
            hub.now += each_s
        assert told == size
        return hub.now - 1000.0

    return run


@pytest.mark.parametrize("size", [10, 64, 1000, 10_000])
def test_what_is_all_there_after_a_slow_beginning_is_read_without_a_pause(
    read: Callable[[Hub, int], float], size: int
) -> None:
    hub = Hub(size, lambda at: size if at >= 5.0 else 0)
    assert read(hub, size) == pytest.approx(5.0, abs=0.01)
    assert hub.slept == []


def test_while_most_are_to_come_a_map_sleeps_by_itself_and_its_end_is_not_missed(
    read: Callable[[Hub, int], float],
) -> None:
    hub = Hub(20_000, lambda at: int(5000 * at))
    assert read(hub, 20_000) == pytest.approx(4.0, abs=0.02)
    assert len(hub.slept) > 2 * hub.looks


def test_a_last_call_that_takes_long_is_read_as_soon_as_it_has_ended(read: Callable[[Hub, int], float]) -> None:
    hub = Hub(500, lambda at: 500 if at >= 30.0 else min(499, int(1000 * at)))
    assert read(hub, 500) == pytest.approx(30.0, abs=0.02)


@pytest.mark.parametrize("ends_at", [0.0, 1.0])
def test_what_one_answer_has_no_room_for_is_asked_for_at_once(read: Callable[..., float], ends_at: float) -> None:
    hub = Hub(2000, lambda at: 2000 if at >= ends_at else 500, fit=38)
    assert read(hub, 2000) < 1.0 + 2000 / 38 * 0.015
    assert sum(hub.slept) < 0.3


def test_a_map_does_not_sleep_beyond_its_deadline(read: Callable[..., float]) -> None:
    hub = Hub(20_000, lambda at: int(300 * at))
    with pytest.raises(TimeoutError):
        read(hub, 20_000, deadline=1000.0 + 10.0, each_s=0.0025)
    assert hub.slept
    assert hub.woke_at <= 1000.0 + 10.0 + 1e-6
