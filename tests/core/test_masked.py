"""Keys in order with masks, beside a plain sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from ostler.core.queueing.masked import Masked

MASKS = st.integers(1, 255)
CHANGES = st.lists(st.tuples(st.integers(0, 300), st.none() | MASKS), max_size=400)


def first_of(known: dict[int, int], mask: int, after: int | None) -> int | None:
    meant = (key for key in sorted(known) if known[key] & mask and (after is None or key > after))
    return next(meant, None)


@given(CHANGES, MASKS, st.none() | st.integers(-1, 301))
def test_the_first_whose_mask_meets_another_is_that_of_a_plain_search(
    changes: list[tuple[int, int | None]], wanted: int, after: int | None
) -> None:
    masked: Masked[int] = Masked()
    known: dict[int, int] = {}
    for key, mask in changes:
        if mask is not None:
            masked.set(key, mask)
            known[key] = mask
        elif key in known:
            masked.remove(key)
            del known[key]
        assert masked.first(wanted, after) == first_of(known, wanted, after)
    assert masked.keys() == sorted(known)
    assert len(masked) == len(known)


def test_hundreds_of_keys_that_nobody_means_are_passed_by_chunks() -> None:
    masked: Masked[int] = Masked()
    for key in range(1000):
        masked.set(key, 1)
    masked.set(500, 2)
    assert masked.first(2) == 500
    masked.set(500, 1)
    assert masked.first(2) is None
