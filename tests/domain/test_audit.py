"""The chain: whatever is done to its rows afterwards is found, and by its row."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostler.domain.audit import PRUNED, START, AuditRecord, Link, Verifier, hash_of, parse_link, seal

ROWS = 8


def chain(count: int = ROWS) -> tuple[list[AuditRecord], Link]:
    rows = [AuditRecord(at=float(at), user="ada", action="job.cancel", object=f"job/{at}") for at in range(count)]
    return rows, seal(rows, START)


def faults(rows: list[AuditRecord], head: Link | None, anchor: Link | None = None) -> list[tuple[int, str]]:
    verifier = Verifier(head, anchor)
    for row in reversed(rows):
        verifier.add(row)
    verifier.end()
    return sorted(verifier.faults)


def test_a_chain_as_it_was_written_holds() -> None:
    rows, head = chain()
    assert faults(rows, head) == []
    assert faults([], None) == []
    assert faults(rows, None) == [], "where no head was kept, the rows speak for themselves"


@pytest.mark.parametrize("field", [field for field in AuditRecord.__struct_fields__ if field != "seq"])
@pytest.mark.parametrize("place", [0, 3, ROWS - 1])
def test_a_changed_field_is_found_in_its_row(field: str, place: int) -> None:
    rows, head = chain()
    value = 99.0 if field == "at" else "0" * 64
    rows[place] = msgspec.structs.replace(rows[place], **{field: value})
    assert faults(rows, head)[0][0] == place + 1


@given(place=st.integers(0, ROWS - 1), drawn=st.data())
def test_a_row_with_a_hash_that_fits_it_breaks_the_one_after_it(place: int, drawn: st.DataObject) -> None:
    rows, head = chain()
    rows[place].user = drawn.draw(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda user: user != "ada"))
    rows[place].hash = hash_of(rows[place - 1].hash if place else START.hash, rows[place])
    assert faults(rows, head)[0][0] == min(place + 2, ROWS), "the last one differs from the head that was kept"


def test_a_chain_that_was_made_anew_is_found_by_the_head_though_a_row_came_after_it() -> None:
    rows, head = chain()
    rows[2].user = "eve"
    after = AuditRecord(at=99.0, user="ada", action="job.cancel")
    seal([*rows, after], START)
    assert faults([*rows, after], head)[0][0] == ROWS


REMOVALS: dict[str, tuple[Callable[[list[AuditRecord]], list[AuditRecord]], int]] = {
    "one in the midst": (lambda rows: rows[:3] + rows[4:], 4),
    "the first": (lambda rows: rows[1:], 1),
    "the tail": (lambda rows: rows[:5], 6),
    "all": (lambda rows: [], ROWS),
    "two in each other's place": (lambda rows: [*rows[:2], rows[3], rows[2], *rows[4:]], 3),
    "one twice": (lambda rows: [*rows[:2], rows[1], *rows[2:]], 3),
}


@pytest.mark.parametrize("how", REMOVALS)
def test_rows_that_are_gone_or_elsewhere_are_found(how: str) -> None:
    rows, head = chain()
    remove, first = REMOVALS[how]
    assert faults(remove(rows), head)[0][0] == first


def test_what_went_by_age_is_anchored_by_a_row_that_tells_of_it() -> None:
    rows, head = chain()
    anchor = Link(rows[2].seq, rows[2].hash)
    told = AuditRecord(at=99.0, user="hub", action=PRUNED, detail=str(anchor))
    head = seal([told], head)
    left = [*rows[3:], told]
    assert faults(left, head, anchor) == []
    further = Link(rows[4].seq, rows[4].hash)
    assert faults(left[2:], head, further), "an anchor that was moved on by hand is told by no row"
    assert faults(left[1:], head, anchor)[0][0] == 4
    unsaid, head = chain()
    assert faults(unsaid[3:], head, anchor)[0] == (3, "was removed by age, but no row tells of it")


@pytest.mark.parametrize("text", ["", "7", "7:", ":" + "a" * 64, "7:" + "g" * 64, "-1:" + "a" * 64, "7:" + "a" * 63])
def test_what_is_no_link_is_not_taken_for_one(text: str) -> None:
    assert parse_link(text) is None


def test_a_link_is_read_as_it_is_written() -> None:
    link = Link(12, "0a" * 32)
    assert parse_link(str(link)) == link
