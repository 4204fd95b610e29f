"""The hub's copies of logs."""

from pathlib import Path

import pytest

from ostler.domain.errors import BadInput, TooLarge
from ostler.store import logs
from ostler.store.logs import LogStore, WrongOffset


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path)


def test_a_copy_grows_at_its_end_and_nowhere_else(store: LogStore) -> None:
    assert store.append("a1", 0, b"one ") == 4
    with pytest.raises(WrongOffset) as wrong:
        store.append("a1", 3, b"two")
    assert (wrong.value.size, wrong.value.reached) == (4, 4)
    assert store.append("a1", 4, b"two") == 7
    assert store.read("a1", 0) == b"one two"


def test_after_a_gap_the_copy_reaches_further_than_it_has(store: LogStore, tmp_path: Path) -> None:
    store.append("a1", 0, b"head")
    size = store.append("a1", 4, b"tail", gap=1000)
    assert store.read("a1", 0) == b"head\n[ostler: 1000 bytes left out here]\ntail"
    assert (store.size("a1"), store.reached("a1")) == (size, 4 + 1000 + 4)
    store.append("a1", size, b"!", gap=5)
    assert LogStore(tmp_path).reached("a1") == 1008 + 5 + 1
    with pytest.raises(WrongOffset) as wrong:
        store.append("a1", 0, b"?")
    assert wrong.value.reached == 1014


def test_a_line_of_the_hubs_own_is_not_taken_for_output(store: LogStore) -> None:
    store.append("a1", 0, b"printed")
    store.note("a1", "no more for now")
    assert store.read("a1", 0) == b"printed\n[ostler: no more for now]\n"
    assert store.reached("a1") == len(b"printed")


def test_a_full_copy_still_takes_the_end(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 100)
    monkeypatch.setattr(logs, "ENDING_BYTES", 60)
    store.append("a1", 0, b"x" * 40)
    with pytest.raises(TooLarge):
        store.append("a1", 40, b"y")
    assert store.append("a1", 40, b"the end", gap=9, ending=True) < 100
    with pytest.raises(TooLarge):
        store.append("a1", store.size("a1"), b"z" * 60, ending=True)


@pytest.mark.parametrize("attempt", ["", "../../etc/passwd", "a/b", "a" * 65, "a.b"])
def test_no_attempt_leads_out_of_the_folder(store: LogStore, attempt: str) -> None:
    with pytest.raises(BadInput):
        store.append(attempt, 0, b"x")
