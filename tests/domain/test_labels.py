"""Constraints on labels: each operator, what is missing, what is malformed."""

from decimal import Decimal

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
    "f": "0.8",
    "t": "-5",
    "slots": "8.0",
    "flops": "1e12",
    "torch": "2.3.1+cu121",
    "nightly": "2.4.0rc1",
    "fqdn": "node-01.rack.dc",
    "lidar": "unknown",
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
        ("f >= 0.75", True),
        ("f > 0.8", False),
        ("f = 0.80", True),
        ("f < 1", True),
        ("f >= .75", True),
        ("t >= 0.75", False),
        ("t < 0", True),
        ("t > -5.5", True),
        ("t = -5.0", True),
        ("slots = 8", True),
        ("slots != 8", False),
        ("slots in 4, 8", True),
        ("slots in 4, 80", False),
        ("flops >= 5e11", True),
        ("flops = 1000000000000", True),
        ("lidar >= 0.75", False),
        ("lidar < 0.75", False),
        ("lidar != 0.75", True),
        ("lidar > known", True),
        ("driver >= unknown", False),
        ("python = 3.11.0", True),
        ("python = 3.110", False),
        ("cuda >= 11.8", True),
        ("cuda = 12.0", True),
        ("torch >= 2.3", True),
        ("torch >= 2.10", False),
        ("torch = 2.3.1", True),
        ("torch <= 2.3.1", True),
        ("torch > 2.3.1", False),
        ("torch = 2.3.1+cu118", False),
        ("torch > 2.3.1+cu118", True),
        ("nightly < 2.4.0", True),
        ("nightly > 2.4.0b2", True),
        ("nightly > 2.3.9", True),
        ("fqdn = node-1.rack.dc", False),
        ("fqdn = node-01.rack.dc", True),
    ],
)
def test_each_operator_compares_numbers_versions_and_text_by_their_own_order(text: str, holds: bool) -> None:
    assert parse_constraint(text, "labels").holds(HERE) is holds


@pytest.mark.parametrize(
    ("rule", "have"),
    [
        ("img = 1.0.0-1", "1.0.0.1"),
        ("img = 1.0.0", "1.0"),
        ("img in 1.0.0-1,2.0.0", "1.0.0.1"),
        ("ip = 10.0.0.0", "10.0"),
        ("ip = 10.0.0.01", "10.0.0.1"),
        ("hostname = 1-2.example.com", "1.2.example.com"),
        ("hostname = 10.Example.com", "10.example.com"),
        ("hostname = 08", "8"),
        ("os = 10.0", "10"),
        ("arch in 8.0,9", "8"),
    ],
)
def test_different_names_and_addresses_are_never_equal(rule: str, have: str) -> None:
    constraint = parse_constraint(rule, "labels")
    differs = parse_constraint(f"{constraint.label} != {constraint.choices()[0]}", "labels")
    assert not constraint.holds({constraint.label: have})
    assert differs.holds({constraint.label: have})


def test_versions_on_any_label_have_the_order_of_versions() -> None:
    assert parse_constraint("img >= 1.0.9", "labels").holds({"img": "1.0.10"})
    assert parse_constraint("img = 1.0.10", "labels").holds({"img": "1.0.10"})
    assert parse_constraint("hostname < b", "labels").holds({"hostname": "a10"})
    assert not parse_constraint("hostname < 9", "labels").holds({"hostname": "9.a.b"})


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


def test_a_fact_that_is_a_version_compares_part_by_part_and_another_label_as_a_number() -> None:
    for label in ("python", "torch", "driver", "cuda"):
        assert Constraint(label, "<", "3.10").holds({label: "3.9"})
        assert not Constraint(label, "=", "3.10").holds({label: "3.1"})
    assert Constraint("load", ">", "3.10").holds({"load": "3.9"})
    assert Constraint("load", "=", "3.10").holds({"load": "3.1"})


def test_early_releases_are_older_than_the_release_and_later_builds_are_newer() -> None:
    in_order = ["2.4.dev1", "2.4.0a1", "2.4.0b1", "2.4rc1", "2.4.0rc2", "2.4", "2.4.0.post1", "2.4.0.1", "v2.4.1"]
    for place, older in enumerate(in_order):
        for newer in in_order[place + 1 :]:
            assert Constraint("torch", "<", newer).holds({"torch": older}), (older, newer)
            assert Constraint("torch", ">", older).holds({"torch": newer}), (older, newer)


def test_long_numbers_that_differ_in_their_last_digit_differ() -> None:
    assert Constraint("serial", "!=", "12345678901234567891").holds({"serial": "12345678901234567890"})
    assert Constraint("v", "<", f"1.0.{'9' * 5000}").holds({"v": f"1.0.{'9' * 4999}"})


def order(label: str, left: str, right: str) -> str:
    """Which of the three holds for the pair; empty: none of them does."""
    found = [op for op in "<=>" if Constraint(label, op, right).holds({label: left})]
    assert len(found) <= 1
    assert Constraint(label, "<=", right).holds({label: left}) == (found in (["<"], ["="]))
    assert Constraint(label, ">=", right).holds({label: left}) == (found in ([">"], ["="]))
    assert Constraint(label, "!=", right).holds({label: left}) == (found != ["="])
    return "".join(found)


MIRRORED = {"<": ">", "=": "=", ">": "<", "": ""}

numbers = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.decimals(-(10**6), 10**6, allow_nan=False, places=3).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["8", "8.0", "08", "+8", "8.", ".5", "0.50", "-0", "0", "1e3", "1000"]),
)
versions = st.one_of(
    st.lists(st.integers(0, 12), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts))),
    st.from_regex(r"\A[0-9]{1,2}(\.[0-9]{1,2}){0,3}((a|b|rc|\.dev|\.post|-)[0-9])?(\+(cu[0-9]{3}|cpu))?\Z"),
)


@given(numbers, numbers, numbers)
def test_numbers_have_one_total_order(one: str, two: str, three: str) -> None:
    found = order("f", one, two)
    assert found and found == MIRRORED[order("f", two, one)]
    assert (found == "<") == (Decimal(one) < Decimal(two))
    if found in "<=" and order("f", two, three) in "<=":
        assert order("f", one, three) == max(found, order("f", two, three), key="=<".index)


@given(st.sampled_from(["v", "python", "torch", "driver", "cuda"]), versions, versions)
def test_the_order_of_two_versions_is_mirrored_when_they_change_places(label: str, one: str, two: str) -> None:
    found = order(label, one, two)
    assert found == MIRRORED[order(label, two, one)]
    assert found or label == "v", "each fact that is a version has an order"


@given(st.sampled_from(["zone", "torch"]), st.text(max_size=12), st.text(max_size=12))
@example("torch", "2.3", "unknown")
def test_of_any_two_texts_one_order_holds_at_most(label: str, one: str, two: str) -> None:
    assert order(label, one, two) == MIRRORED[order(label, two, one)]
    assert order(label, one, one) == "="


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=4), st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
def test_versions_are_ordered_part_by_part_as_if_they_went_on_with_zeros(left: list[int], right: list[int]) -> None:
    have, want = ".".join(map(str, left)), ".".join(map(str, right))
    longer, other = ([*parts, *[0] * (4 - len(parts))] for parts in (left, right))
    assert Constraint("driver", "<", want).holds({"driver": have}) == (longer < other)
    assert Constraint("driver", "=", want).holds({"driver": have}) == (longer == other)
    assert Constraint("driver", ">=", want).holds({"driver": have}) == (longer >= other)
