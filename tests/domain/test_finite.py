"""JSON without numbers that JSON does not have."""

import math
import sys
from typing import Any

import msgspec
import pytest

from ostler.domain.finite import encode

INFINITE = (math.inf, -math.inf, math.nan)


class Part(msgspec.Struct, omit_defaults=True, rename="camel"):
    likely_s: float
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    high_s: float | None = None


class Whole(msgspec.Struct):
    part: Part
    parts: list[Part] = []
    name: str = "null"
    end: float | None = None


@pytest.mark.parametrize("number", INFINITE)
def test_a_field_whose_number_is_not_finite_is_absent(number: float) -> None:
    assert encode({"a": 1.5, "b": number, "c": None}) == b'{"a":1.5,"c":null}'
    whole = Whole(Part(number, msgspec.Raw(b'{"x":1}')), [Part(2.0, high_s=number)])
    expected = {"part": {"spec": {"x": 1}}, "parts": [{"likelyS": 2.0}], "name": "null", "end": None}
    assert msgspec.json.decode(encode(whole)) == expected
    assert msgspec.json.decode(encode({"deep": [whole]})) == {"deep": [expected]}


def test_a_number_of_a_list_that_is_not_finite_is_null_so_that_the_others_keep_their_places() -> None:
    assert encode([1.0, math.inf, (math.nan, 2)]) == b"[1.0,null,[null,2]]"


@pytest.mark.parametrize(
    "document",
    [{"a": None, "b": [1.5, "null", {"c": b"x"}]}, Whole(Part(1.0, high_s=2.0)), msgspec.Raw(b'{"a":null}'), None],
)
def test_a_document_of_finite_numbers_is_encoded_as_it_is(document: Any) -> None:
    assert encode(document) == msgspec.json.encode(document)


def test_a_long_document_of_finite_numbers_is_not_walked() -> None:
    """Nearly every answer of a hub has a null, and the hub's loop would wait for the walk."""
    rows = [{"number": number, "at": number / 3, "end": None, "spec": msgspec.Raw(b"{}")} for number in range(1000)]
    calls = list[str]()
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        encode({"rows": rows})
    finally:
        sys.setprofile(None)
    assert len(calls) < 10


@pytest.mark.parametrize("number", INFINITE)
def test_an_infinite_number_is_found_beside_whatever_json_can_hold(number: float) -> None:
    others = {
        "big": 2**70,
        "text": "\u02ff\x7f",
        "raw": msgspec.Raw(b'{"a":null}'),
        "none": None,
        "bytes": b"\xcb\x7f\xf0",
    }
    found = msgspec.json.decode(encode({**others, "x": number, "list": [number, 1.5]}))
    assert found == {**msgspec.json.decode(msgspec.json.encode(others)), "list": [None, 1.5]}
