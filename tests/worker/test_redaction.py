"""Covering secrets in what is printed: every shape that is promised, and not a byte more or less than there was."""

import base64
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ostler.worker.redaction import LEAST, Redactor

SECRETS = st.binary(min_size=LEAST, max_size=60).filter(lambda one: one.strip() == one and b"\n" not in one)


@pytest.mark.parametrize(
    "shape",
    [
        bytes,
        base64.b64encode,
        base64.urlsafe_b64encode,
        lambda one: base64.b64encode(b"a" + one + b"zz"),
        lambda one: base64.b64encode(b"user:" + one),
        lambda one: quote(one).encode(),
        lambda one: quote_plus(one).encode(),
        lambda one: quote(one, safe="").encode(),
    ],
)
def test_a_secret_shows_in_none_of_these_shapes(shape: object) -> None:
    secret = b"p@ss word/+%&=\xc3\xa9-and-more"
    text = b"before " + shape(secret) + b" after"  # type: ignore[operator]
    covered = Redactor([secret]).covered(text)
    assert len(covered) == len(text)
    assert covered.startswith(b"before ")
    assert covered.endswith(b" after")
    core = base64.b64encode(secret)[4:-6]
    assert secret not in covered and core not in covered and quote(secret).encode() not in covered
    assert covered.count(b"*") >= len(secret) - 2


@given(SECRETS, st.binary(max_size=30), st.binary(max_size=30))
def test_whatever_stands_around_it(secret: bytes, before: bytes, behind: bytes) -> None:
    covered = Redactor([secret]).covered(before + secret + behind)
    assert secret not in covered or secret.strip(b"*") == b""
    assert len(covered) == len(before + secret + behind)


@given(SECRETS, st.binary(max_size=30), st.integers(1, 100))
def test_half_of_one_at_the_end_is_held_back_until_it_shows_what_it_is(secret: bytes, before: bytes, cut: int) -> None:
    cut = min(cut, len(secret) - 1)
    redactor = Redactor([secret])
    data = before + secret[:cut]
    assert redactor.held_back(data) >= cut
    assume(secret not in before)
    assert redactor.held_back(before + secret) < redactor.longest


def test_each_line_of_one_that_has_several_is_covered_by_itself() -> None:
    redactor = Redactor([b"-----BEGIN-----\nMIIEvQIBADAN\nab\n-----END-----\n"])
    assert redactor.covered(b"> MIIEvQIBADAN <") == b"> ************ <"
    assert redactor.covered(b"grab a cab") == b"grab a cab", "too short to be told from a word"


def test_one_that_begins_with_another_is_covered_to_its_end() -> None:
    assert Redactor([b"secret", b"secret-longer"]).covered(b"secret-longer!") == b"*************!"


def test_text_that_is_no_utf_8_is_no_obstacle() -> None:
    redactor = Redactor([b"secret"])
    assert redactor.text("a secret \udcff") == "a ****** \ufffd"


def test_without_secrets_nothing_is_done() -> None:
    redactor = Redactor([])
    assert redactor.covered(b"***secret") == b"***secret"
    assert redactor.held_back(b"sec") == 0


def test_how_long_it_takes_does_not_grow_with_the_lines_of_a_secret() -> None:
    text = "".join(f"{number:x} lines of a log\n" for number in range(4000)).encode()

    def took(*secrets: bytes) -> float:
        redactor = Redactor(secrets)
        begun = time.process_time()
        redactor.covered(text)
        redactor.held_back(text)
        return time.process_time() - begun

    many = [
        b"\n".join(f"{(number + of) * 7919:07x}".encode() for number in range(2000)) for of in range(0, 32000, 2000)
    ]
    assert took(*many) < 1000 * min(took(b"hf_abcdefghijklmnopqrst") for _ in range(3))


@given(st.sets(st.binary(min_size=1, max_size=4), max_size=8), st.binary(max_size=40))
def test_many_that_begin_alike_are_covered_as_if_each_were_looked_for_alone(ends: set[bytes], text: bytes) -> None:
    secrets = [b"alike-" + end for end in ends]
    redactor = Redactor(secrets)
    for secret in secrets:
        assert redactor.covered(b"<" + secret + b">").strip(b"*") in (b"<>", b"<" + b"*" * len(secret) + b">")
    assert len(redactor.covered(text)) == len(text)
