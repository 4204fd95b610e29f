"""Whatever stands in the file: a manifest, or an error that says where."""

import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable

from tests.manifest.samples import SAMPLES
from tests.manifest.test_locate import keys_in

from ostler.domain.errors import BadInput, Unreadable
from ostler.manifest import read
from ostler.manifest.keys import JOB_KEYS, SWEEP_KEYS
from ostler.manifest.locate import Refused, places

ROUNDS = 10_000
TOKEN = re.compile(r"[A-Za-z0-9_]+|\s+|.", re.DOTALL)
NASTY = [
    *('"', "'", '"""', "'''", "[", "]", "[[", "]]", "{", "}", "=", ",", ".", "#", "\\", "\n", "\r", "\0", "\t"),
    *(
        "nan",
        "-inf",
        "true",
        "1e400",
        "-0.0",
        "9" * 30,
        "9" * 5000,
        "0x" + "f" * 900,
        "1979-05-27T07:32:00Z",
        "07:32:00",
    ),
    *('"\\u0000"', '"\\ud800"', '"\\x41"', "é", "\u2028", "\ufeff", "{hyper...}", "{lr}", "{{", "}}", "{out}"),
    *("[jobs]", "[[jobs]]", "[[sweeps]]", "[defaults]", "[hosts]", "[[jobs.hyper]]", "jobs = 1", "grid.a = []"),
    *("[" * 100, "{a=" * 100, "a." * 100 + "b = 1", "x" * 2000, "grid = { a = [1, 1.0] }", "\n" * 50),
    *JOB_KEYS,
    *SWEEP_KEYS,
]

Mutation = Callable[[bytes, random.Random], bytes]


def flip_a_byte(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def cut_a_stretch(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randrange(1, 40) :]


def repeat_a_stretch(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    end = start + rng.randrange(1, 200)
    return data[:end] + data[start:end] * rng.randrange(1, 4) + data[end:]


def splice(data: bytes, rng: random.Random) -> bytes:
    other = rng.choice(SAMPLES).encode()
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]


def replace_a_token(data: bytes, rng: random.Random) -> bytes:
    tokens = TOKEN.findall(data.decode(errors="surrogateescape"))
    tokens[rng.randrange(len(tokens))] = rng.choice(NASTY)
    return "".join(tokens).encode(errors="surrogateescape")


def swap_two_tokens(data: bytes, rng: random.Random) -> bytes:
    tokens = TOKEN.findall(data.decode(errors="surrogateescape"))
    one, two = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    tokens[one], tokens[two] = tokens[two], tokens[one]
    return "".join(tokens).encode(errors="surrogateescape")


def move_a_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    line = lines.pop(rng.randrange(len(lines)))
    lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\n".join(lines)


MUTATIONS: list[Mutation] = [
    *(flip_a_byte, cut_a_stretch, repeat_a_stretch, splice),
    *(replace_a_token, replace_a_token, replace_a_token, swap_two_tokens, move_a_line),
]


def mutant(rng: random.Random) -> bytes:
    data = rng.choice(SAMPLES).encode()
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = rng.choice(MUTATIONS)(data, rng) or b"\n"
    return data


def end_of(data: bytes) -> str:
    """How reading it ends; anything but these three is raised."""
    try:
        read(data)
    except Unreadable as error:
        told = re.match(r"manifest\.toml:\d+: cannot be read as TOML: .", str(error))
        return "unreadable" if told else f"told badly: {error}"
    except BadInput as error:
        last = data.count(b"\n") + 1
        told_well = all(1 <= int(where.split(":")[1]) <= last and what for where, what in error.errors)
        return "bad" if told_well and 1 <= len(error.errors) <= 20 else f"told badly: {error}"
    return "read"


def test_ten_thousand_mutants_are_read_or_refused_and_nothing_else() -> None:
    rng = random.Random("manifest")
    ends = Counter(end_of(mutant(rng)) for _ in range(ROUNDS))
    assert ends.keys() == {"read", "unreadable", "bad"}
    assert min(ends.values()) > ROUNDS // 20, ends


def test_the_walk_finds_every_key_of_whatever_mutant_is_still_toml() -> None:
    rng = random.Random("places")
    compared = 0
    for _ in range(1000):
        text = mutant(rng).decode(errors="replace").replace("\r\n", "\n")
        try:
            found = {path for path, _ in places(text)}
            tables = tomllib.loads(text)
        except (Refused, ValueError):
            continue
        compared += 1
        missed = set(keys_in(tables)) - found
        assert not missed, (text, missed)
    assert compared > 200
