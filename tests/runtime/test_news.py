"""When a worker is told of an end, and that nothing depends on it."""

from pathlib import Path
from typing import Any

import pytest

from ostler.runtime.attempts import Folders
from ostler.runtime.clock import also_asleep
from ostler.runtime.journal import Journal
from ostler.runtime.news import MOST, NEVER, WITHIN_S, News
from ostler.runtime.waiting import Waiting


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path / "journal"), "boot")


@pytest.fixture
def news(journal: Journal, tmp_path: Path) -> News:
    return News(journal, Folders(str(tmp_path)))


def _end(attempt: str) -> dict[str, Any]:
    times = {"started_at": 1.0, "finished_at": 2.0}
    return {"attempt": attempt, "task_id": "t", "exit_code": 0, "error": "", "stopped": "", "result": "", **times}


def test_an_end_whose_place_is_taken_waits_for_others_and_not_for_long(news: News) -> None:
    before = also_asleep()
    news.add(_end("a"), followed=True)
    news.add(_end("b"), followed=True)
    assert before < news.tell_at <= also_asleep() + WITHIN_S
    assert news.take(before) == []
    assert ['"attempt":"a"' in text for text in news.take(news.tell_at)] == [True, False]
    assert news.tell_at == NEVER and news.take(NEVER) == []


def test_all_supervisors_of_a_machine_tell_at_the_same_moments(journal: Journal, tmp_path: Path) -> None:
    one, other = (News(journal, Folders(str(tmp_path))) for _ in range(2))
    while True:
        begun = also_asleep()
        one.add(_end("a"), followed=True)
        other.add(_end("b"), followed=True)
        if begun // WITHIN_S == also_asleep() // WITHIN_S:
            break
        one.take(NEVER), other.take(NEVER)
    assert one.tell_at == other.tell_at


def test_one_whose_place_nobody_takes_is_told_at_once_with_all_before_it(news: News) -> None:
    news.add(_end("a"), followed=True)
    news.add(_end("b"))
    news.add(_end("c"), followed=True)
    assert len(news.take(also_asleep())) == 3


def test_many_do_not_wait_for_more(news: News) -> None:
    for number in range(MOST):
        news.add(_end(f"a{number}"), followed=True)
    assert len(news.take(also_asleep())) == MOST


def test_one_that_waits_to_be_told_is_on_the_disk(news: News, tmp_path: Path) -> None:
    news.add(_end("a"), followed=True)
    assert news.take(0.0) == []
    assert list(Journal(str(tmp_path / "journal"), "boot").ends) == ["a"]


def test_an_end_is_followed_by_whoever_waits_for_it_alone() -> None:
    waiting = Waiting()
    waiting.add({"attempt": "one"}, {"a"})
    waiting.add({"attempt": "two"}, {"b", "c"})
    assert waiting.ended("a")
    assert not waiting.ended("b") and waiting.ended("c")
    assert not waiting.ended("nobody's")
