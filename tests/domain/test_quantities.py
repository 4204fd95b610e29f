"""Amounts as people write them, and the whole numbers that the core counts in."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostler.domain.errors import BadInput
from ostler.domain.quantities import (
    needed_mib,
    needed_milli,
    offered_mib,
    offered_milli,
    parse_duration,
    parse_size,
    show_cores,
    show_mib,
)

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512m", 512 * MIB),
        ("8g", 8 * GIB),
        ("8G", 8 * GIB),
        ("16gb", 16 * GIB),
        ("16GB", 16 * GIB),
        ("16 GiB", 16 * GIB),
        ("1.5TiB", TIB * 3 // 2),
        ("4k", 4 * KIB),
        ("1p", 1024 * TIB),
        ("123", 123),
        ("123b", 123),
        (" 7m ", 7 * MIB),
        (0, 0),
        (4096, 4096),
        (4096.7, 4096),
    ],
)
def test_a_size_is_read_in_powers_of_1024(text: str | int | float, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["8q", "", " ", "-1", "-8g", "g", "8 g b", "8gg", "1e3", "0x10", "nan", "inf", "8g\0", "8,5g", "1.g", ".5g"],
)
def test_what_is_not_a_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"memory: .* is not a size; write it like '512m'") as caught:
        parse_size(text, "memory")
    assert caught.value.errors == [("memory", f"{text!r} is not a size")]


@pytest.mark.parametrize("number", [-1, -0.5, math.nan, math.inf, -math.inf, True, False])
def test_a_number_that_is_no_size_is_refused_by_name(number: float) -> None:
    with pytest.raises(BadInput, match="memory"):
        parse_size(number, "memory")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        (30, 30),
        (0, 0),
    ],
)
def test_a_duration_is_read_in_seconds(text: str | int, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5x", "-5s", "h", "1h30m", -1, math.nan, math.inf, True])
def test_what_is_not_a_duration_is_refused_by_name(text: str | float) -> None:
    with pytest.raises(BadInput, match="timeout"):
        parse_duration(text, "timeout")


@given(st.floats(min_value=0, max_value=1e7, allow_nan=False))
def test_a_need_is_never_rounded_down_and_an_offer_never_up(amount: float) -> None:
    assert offered_mib(amount) <= amount * 1024 + 1e-5 and amount * 1024 - 1e-5 <= needed_mib(amount)
    assert offered_milli(amount) <= amount * 1000 + 1e-5 and amount * 1000 - 1e-5 <= needed_milli(amount)
    assert needed_mib(amount) - offered_mib(amount) <= 1


@pytest.mark.parametrize("gib", [0.1, 0.3, 0.7, 1.1, 15.9, 23.988, 79.15])
def test_a_job_that_asks_for_exactly_what_is_offered_gets_it(gib: float) -> None:
    mib = round(gib * 1024)
    assert needed_mib(mib / 1024) == mib == offered_mib(mib / 1024)
    assert needed_milli(gib) == offered_milli(gib) or needed_milli(gib) == offered_milli(gib) + 1


def test_amounts_are_shown_in_the_unit_a_person_would_use() -> None:
    assert show_mib(512) == "512 MiB"
    assert show_mib(16 * 1024) == "16 GiB"
    assert show_mib(1536) == "1.5 GiB"
    assert show_cores(1500) == "1.5"
    assert show_cores(64_000) == "64"
