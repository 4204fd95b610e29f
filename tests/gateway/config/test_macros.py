"""Macros: what they stand for, where, and what is wrong with them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostler.domain.errors import BadInput
from ostler.gateway.macros import Macros

ENV = {"HOME": "/home/ann", "EMPTY": ""}


def expanded(value: Any, macros: dict[str, Any] | None = None, own: dict[str, Any] | None = None) -> Any:
    found = Macros(macros or {}, ENV)
    assert found.problems == []
    return found.expand(value, "here", own or {})


def problems(macros: dict[str, Any]) -> dict[str, str]:
    return dict(Macros(macros, ENV).problems)


def test_a_macro_may_use_others_in_whatever_order() -> None:
    macros = {"last": "${first} and ${second}", "first": "${second}!", "second": 2}
    assert expanded("<${last}>", macros) == "<2! and 2>"


@pytest.mark.parametrize("value", [3, 2.5, True, "text", "", 0])
def test_a_text_that_is_one_macro_becomes_what_the_macro_is(value: Any) -> None:
    found = expanded({"one": "${m}", "more": ["${m}", "a${m}"]}, {"m": value})
    assert found["one"] == value and type(found["one"]) is type(value)
    assert found["more"] == [value, f"a{str(value).lower() if value is True else value}"]


def test_variables_names_and_places_are_put_in() -> None:
    own = {"MODEL_ID": "qwen", "PORT": 8080}
    assert expanded("${env.HOME}/${MODEL_ID}:${PORT}${env.EMPTY}", own=own) == "/home/ann/qwen:8080"


def test_a_macro_means_at_each_place_what_its_own_macros_mean_there() -> None:
    macros = Macros({"m": "--port ${PORT}"}, ENV)
    assert [macros.expand("${m}", "x", {"PORT": port}) for port in (1, 2)] == ["--port 1", "--port 2"]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("$${PORT}", "${PORT}"),
        ("$$${m}", "$${m}"),
        ("a$b", "a$b"),
        ("${", "${"),
        ("$m {m}", "$m {m}"),
        ("${m}$${m}", "1${m}"),
    ],
)
def test_what_is_no_macro_stays(text: str, meant: str) -> None:
    assert expanded(text, {"m": 1}) == meant


def test_what_a_variable_holds_is_not_read_again() -> None:
    macros = Macros({"m": 1}, {"X": "${m}"})
    assert macros.expand("<${env.X}>", "here", {}) == "<${m}>"


@given(st.recursive(st.integers() | st.booleans() | st.text("ab$ {}").filter(lambda text: "${" not in text), st.lists))
def test_a_value_without_macros_stays_as_it_is(value: Any) -> None:
    assert expanded({"x": value}) == {"x": value}


@pytest.mark.parametrize(
    ("value", "where", "what"),
    [
        ("${contxt}", "here", "there is no macro 'contxt'; did you mean 'context'?"),
        ("${zzz}", "here", "there is no macro 'zzz'; there are context, PORT, PID, MODEL_ID"),
        ("${port}", "here", "there is no macro 'port'; did you mean 'PORT'?"),
        ({"a b": ["", "${env.NOWHERE}"]}, 'here."a b"[1]', "the variable 'NOWHERE' is not set where the hub runs"),
        ("${PORT}", "here", "${PORT} is known only where the server starts"),
        ("${PID}", "here", "${PID} is known only while the server runs"),
        ("${MODEL_ID}", "here", "${MODEL_ID} stands for a model's name"),
        ("${}", "here", "there is no macro ''"),
    ],
)
def test_what_stands_for_nothing_is_named(value: Any, where: str, what: str) -> None:
    with pytest.raises(BadInput) as error:
        Macros({"context": 1}, ENV).expand(value, "here", {})
    ((found, told),) = error.value.errors
    assert (found, what in told) == (where, True), told


def test_all_that_is_wrong_with_a_value_is_told_once() -> None:
    with pytest.raises(BadInput) as error:
        Macros({}, ENV).expand({"a": "${x} ${y} ${x}", "b": "${z}"}, "here", {})
    assert [where for where, _ in error.value.errors] == ["here.a", "here.a", "here.b"]


def test_circles_are_told_and_end() -> None:
    macros = {"a": "${b}", "b": "1 ${c} ${a}", "c": "${b}", "self": "${self}", "user": "${a}"}
    found = problems(macros)
    assert found["gateway.macros.a"] == "stands for itself: a → b → a"
    assert found["gateway.macros.self"] == "stands for itself: self → self"
    assert "gateway.macros.user" not in found
    assert Macros(macros, ENV).expand("${user} ${c}", "here", {}) == " ", "told once, where they are defined"


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("PORT", 1, "has a meaning of its own"),
        ("MODEL_ID", "", "has a meaning of its own"),
        ("a b", 1, "at most 63 letters"),
        ("x" * 64, 1, "at most 63 letters"),
        ("env.X", 1, "at most 63 letters"),
        ("m", [1], "must be a string, a number, true or false"),
        ("m", {"a": 1}, "must be a string, a number, true or false"),
        ("m", "${nope}", "there is no macro 'nope'"),
        ("m", "${env.NOPE}", "the variable 'NOPE' is not set"),
    ],
)
def test_a_wrong_macro_is_told_where_it_is_defined(name: str, value: Any, what: str) -> None:
    ((_, told),) = problems({name: value}).items()
    assert what in told
