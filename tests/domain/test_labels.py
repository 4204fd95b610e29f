"""Constraints on labels: each operator, what is missing, what is malformed."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostler.domain.errors import BadInput
from ostler.domain.labels import Constraint, parse_constraint

HERE = {
    "zone": "eu-1",
    "driver": "550.54.14",
    "python": "3.11",
    "cuda": "12",
    "nvlink": "",
    "kernel": "5.15.0-91-generic",
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("zone = eu-1", True),
        ("zone == eu-1", True),
        ("zone=eu-1", True),
        ("zone = eu-2", False),
        ("zone = EU-1", False),
        ("zone != eu-2", True),
        ("zone != eu-1", False),
        ("zone in eu-1,us-1", True),
        ("zone in (us-1, eu-1)", True),
        ("zone in us-1, us-2", False),
        ("zone in eu", False),
        ("nvlink exists", True),
        ("zone exists", True),
        ("driver >= 550", True),
        ("driver > 550", True),
        ("driver > 99", True),
        ("driver < 1000", True),
        ("driver <= 550.54.14", True),
        ("driver < 550.54.14", False),
        ("driver > 550.54.9", True),
        ("python >= 3.9", True),
        ("python > 3.9", True),
        ("python < 3.9", False),
        ("python < 3.12", True),
        ("cuda <= 12", True),
        ("cuda > 9", True),
        ("cuda > 100", False),
        ("kernel >= 5.4", True),
        ("kernel < 5.15.0-100", True),
    ],
)
def test_each_operator_means_what_it_says_and_versions_compare_as_numbers(text: str, holds: bool) -> None:
    assert parse_constraint(text, "labels").holds(HERE) is holds


@pytest.mark.parametrize("op", ["= x", "in x,y", "exists", "< 5", "<= 5", "> 5", ">= 5"])
def test_a_label_that_is_missing_meets_nothing(op: str) -> None:
    assert not parse_constraint(f"rack {op}", "labels").holds(HERE)


def test_a_label_that_is_missing_differs_from_every_value() -> None:
    assert parse_constraint("rack != 7", "labels").holds(HERE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "zone",
        "= eu",
        "zone eu",
        "zone =",
        "zone = ",
        "zone ==",
        "zone <=",
        "zone in",
        "zone in ",
        "zone ~ eu",
        "zone exists yes",
        "zo ne = eu",
        "zonein eu",
        "zone exists = 1",
        "zöne = eu",
    ],
)
def test_what_is_not_a_constraint_is_refused_with_the_form_and_the_field(text: str) -> None:
    with pytest.raises(BadInput, match=r"prefer_labels: .* is not a constraint; write 'label op value'") as caught:
        parse_constraint(text, "prefer_labels")
    assert caught.value.errors[0][0] == "prefer_labels"


def test_a_constraint_reads_back_as_it_was_written() -> None:
    for text in ("zone = eu-1", "driver >= 550", "zone in a,b", "nvlink exists", "zone != x"):
        assert str(parse_constraint(text, "labels")) == text


labels = st.dictionaries(st.sampled_from(["zone", "driver", "gpu"]), st.text(max_size=12))
ops = st.sampled_from(["=", "!=", "in", "exists", "<", "<=", ">", ">="])


@given(labels, ops, st.text(max_size=12))
@example({"driver": "550"}, ">", "²")
@example({"driver": "①"}, "<=", "550")
@example({"driver": "9" * 400}, ">", "9" * 5000)
def test_no_value_of_a_label_or_a_constraint_breaks_the_comparison(have: dict[str, str], op: str, value: str) -> None:
    assert Constraint("driver", op, value).holds(have) in (True, False)


@given(st.text(max_size=30))
def test_any_text_is_a_constraint_or_bad_input(text: str) -> None:
    try:
        constraint = parse_constraint(text, "labels")
    except BadInput:
        return
    assert constraint.op == "exists" or constraint.value.strip()


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=4), st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
def test_versions_are_ordered_part_by_part(left: list[int], right: list[int]) -> None:
    have, want = ".".join(map(str, left)), ".".join(map(str, right))
    assert Constraint("v", "<", want).holds({"v": have}) == (left < right)
    assert Constraint("v", ">=", want).holds({"v": have}) == (left >= right)
