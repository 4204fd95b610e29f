"""Whom to ask next, of several hubs."""

import pytest

from ostler.domain.hubs import MOST_LEARNT, Addresses

A, B, C = "http://a:1", "http://b:2", "http://c:3"


def test_one_address_is_asked_again_after_a_pause() -> None:
    hubs = Addresses(A + "/")
    assert hubs.current == A
    assert not hubs.failed(A), "there is no other to ask at once"
    assert hubs.current == A


def test_each_has_its_turn_before_there_is_a_pause() -> None:
    hubs = Addresses(f"{A}, {B},{C}")
    asked = [(hubs.current, hubs.failed(hubs.current)) for _ in range(6)]
    assert asked == [(A, True), (B, True), (C, False), (A, True), (B, True), (C, False)]


def test_who_answered_is_stayed_with_and_the_others_have_their_turn_again_when_it_fails() -> None:
    hubs = Addresses(f"{A},{B}")
    hubs.failed(A)
    hubs.answered()
    assert hubs.current == B
    assert hubs.failed(B) and hubs.current == A


def test_the_one_that_is_told_to_lead_is_next_and_is_known_from_then_on() -> None:
    hubs = Addresses(f"{A},{B}")
    assert hubs.failed(A, C)
    assert (hubs.current, hubs.known, str(hubs)) == (C, [A, B, C], f"{A},{B},{C}")
    assert hubs.failed(C) and hubs.current == B


def test_a_standby_that_tells_of_a_leader_that_is_gone_leads_to_no_endless_round() -> None:
    hubs = Addresses(f"{A},{B}")
    turns = [hubs.failed(hubs.current, A if hubs.current == B else "") for _ in range(6)]
    assert turns == [True, False] * 3


def test_a_leader_that_cannot_be_reached_keeps_nobody_else_from_its_turn() -> None:
    hubs = Addresses(f"{A},{B}")
    asked = []
    for _ in range(6):
        asked.append(hubs.current)
        hubs.failed(hubs.current, C if hubs.current == A else "")
    assert asked == [A, C, B, C, A, B]


def test_of_two_that_fail_at_once_one_moves_on() -> None:
    hubs = Addresses(f"{A},{B},{C}")
    assert hubs.failed(A) and hubs.failed(A)
    assert hubs.current == B


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ("https://a", "http://b"),
        ("http://a", "http://127.0.0.1:7600"),
        ("http://a", "http://localhost"),
        ("http://a", "ftp://b"),
        ("http://a", "b:7600"),
        ("http://a", "http://["),
        ("http://a", ""),
    ],
)
def test_a_token_is_not_taken_where_it_does_not_belong(known: str, told: str) -> None:
    hubs = Addresses(known)
    assert not hubs.learn([told])
    hubs.failed(known, told)
    assert (hubs.current, hubs.known) == (known, [known])


@pytest.mark.parametrize(
    ("known", "told"), [("http://a", "https://b"), ("http://127.0.0.1:1", "http://localhost:2"), (A, B)]
)
def test_what_a_hub_tells_of_others_is_learnt_once(known: str, told: str) -> None:
    hubs = Addresses(known)
    assert hubs.learn([told, known]) and hubs.learn([told])
    assert hubs.known == [known, told]


def test_of_hubs_that_come_back_with_new_addresses_the_last_ones_are_remembered() -> None:
    hubs = Addresses(f"{A},{B}")
    hubs.failed(A, C)
    for number in range(100):
        hubs.learn([f"http://pod-{number}", A])
    last = [f"http://pod-{number}" for number in range(100 - MOST_LEARNT, 100)]
    assert hubs.known == [A, B, *last[:-1], C, last[-1]], "those that were given, and the one that is talked to"
    assert hubs.failed(C)
