from ostler.wire.messages import MAX_FRAME_BYTES, packed
from ostler.worker.connection import FIRST_PAUSE_S, LONGEST_PAUSE_S, Pauses


def test_the_first_try_comes_soon_and_none_waits_longer_than_agreed() -> None:
    pauses = Pauses(draw=lambda low, high: high)
    found = [pauses.next_s() for _ in range(10)]
    assert found[0] == FIRST_PAUSE_S
    assert found == sorted(found)
    assert found[-1] == LONGEST_PAUSE_S == 15.0
    pauses.start_over()
    assert pauses.next_s() == FIRST_PAUSE_S


def test_workers_do_not_all_come_back_at_once() -> None:
    pauses = [Pauses() for _ in range(50)]
    assert len({round(one.next_s(), 6) for one in pauses}) > 40


def test_messages_of_one_turn_share_a_frame_that_stays_below_the_limit() -> None:
    assert packed([]) == []
    assert packed([b"1"]) == [b"1"]
    assert packed([b"1", b"2"]) == [b"[1,2]"]
    large = b'"' + b"x" * (MAX_FRAME_BYTES // 3) + b'"'
    assert [frame.count(b"x") > 0 for frame in packed([large] * 3)] == [True, True, True]
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in packed([large] * 3 + [b"1"] * 100))
