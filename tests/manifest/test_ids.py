"""A job's id is made of what is trained, not of how it was written down."""

import hashlib
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.manifest.samples import job

from ostler.domain.job import Training
from ostler.manifest import job_id, read

KNOWN = [
    (
        'model = "gbt"',
        '{"hyper":{},"mode":"","model":"gbt","seed":0,"split_recipe":"","train_hosts":[]}',
        "b6705e06da6361d4c503df82e4db562b9b61f145e84764fa60a94e195fc52839",
    ),
    (
        'model = "gbt"\nmode = "realistic"\nsplit_recipe = "host"\ntrain_hosts = ["a"]\nhyper = { depth = 6, lr = 0.1 }',
        '{"hyper":{"depth":6,"lr":0.1},"mode":"realistic","model":"gbt","seed":0,"split_recipe":"host","train_hosts":["a"]}',
        "9f505134f367f73f8abc9aceedac5cb842445ce87e6a392acd1a07a90b85c89d",
    ),
    (
        'model = "ω"\nmode = "m"\nseed = -3\nsplit_recipe = "s"\ntrain_hosts = ["c", "a", "b"]\n'
        'hyper = { z = -5e-1, b = { d = 1e21, c = 0.0000001 }, A = [1.0, 2.5, "\\u00e9"], 0 = true }',
        '{"hyper":{"0":true,"A":[1,2.5,"é"],"b":{"c":1e-7,"d":1e+21},"z":-0.5},"mode":"m","model":"ω","seed":-3,'
        '"split_recipe":"s","train_hosts":["a","b","c"]}',
        "888fbd03a89c529cf6bfe6cc699a129fc5a72a5856a91c95e9225784f72fa417",
    ),
    (
        'name = "only a name"',
        '{"name":"only a name"}',
        "b9eecf1600f71e40ecca82219e6405b47b6e164eedfb65f9ff12e0f32e9ff2f5",
    ),
    (
        'name = "ω-{seed}"\nmode = "m"\nseed = 3\nhyper = { n = 6 }',
        '{"name":"ω-3"}',
        "83c07d29444e02181a4913fede5401d65cbe5c6faba6693083171cd7169956aa",
    ),
]


@pytest.mark.parametrize(("text", "canonical", "known"), KNOWN)
def test_an_id_is_the_hash_of_the_canonical_json(text: str, canonical: str, known: str) -> None:
    assert hashlib.sha256(canonical.encode()).hexdigest() == known
    assert job(text).id == known


@pytest.mark.parametrize("spelling", ["6", "6.0", "6e0", "0.6e1", "0x6", "0b110", "+6", "6.000", "60e-1"])
def test_the_spelling_of_a_number_does_not_matter(spelling: str) -> None:
    assert job(f'model = "m"\nhyper.n = {spelling}').id == job('model = "m"\nhyper.n = 6').id


@pytest.mark.parametrize("spelling", ["7", '"6"', "true", "[6]", "6.000001", "-6", "{ n = 6 }"])
def test_another_value_is_another_job(spelling: str) -> None:
    assert job(f'model = "m"\nhyper.n = {spelling}').id != job('model = "m"\nhyper.n = 6').id


@pytest.mark.parametrize(
    "differs",
    ['mode = "x"', "hyper.n = 6", 'split_recipe = "x"', 'train_hosts = ["x"]', "seed = 1"],
)
def test_each_of_the_six_is_part_of_the_id(differs: str) -> None:
    assert job(f'model = "m"\n{differs}').id != job('model = "m"').id
    assert job('model = "n"').id != job('model = "m"').id


def test_nothing_else_is_part_of_the_id() -> None:
    other = """
        model = "m"
        name = "x"
        priority = 5
        require_cuda = true
        min_vram_gib = 1
        min_ram_gib = 1
        min_cores = 1
        allowed_hosts = ["a"]
        denied_hosts = ["b"]
        n_resamples = 5
        command = ["another"]
        env = { A = "b" }
        max_runtime_hours = 1
        max_attempts = 1
        max_retries = 1
        preemptible = true
        labels = ["a exists"]
        metric = "loss"
        goal = "min"
    """
    assert job(other).id == job('model = "m"').id


@pytest.mark.parametrize(
    "differs",
    ['mode = "x"', "hyper.n = 6", 'split_recipe = "x"', 'train_hosts = ["x"]', "seed = 1", 'command = ["another"]'],
)
def test_without_a_model_only_the_name_is_part_of_the_id(differs: str) -> None:
    assert job(f'name = "eval"\n{differs}').id == job('name = "eval"').id
    assert job(f'name = "train"\n{differs}').id != job('name = "eval"').id


def test_a_model_that_has_the_name_of_another_job_is_another_job() -> None:
    assert job('name = "eval"\nmodel = "eval"').id != job('name = "eval"').id


def test_a_point_of_a_sweep_is_the_job_it_would_be_alone() -> None:
    sweep = (
        'defaults.command = ["c"]\n[[sweeps]]\nname = "s{lr}"\nmodel = "m"\nhyper = { n = 1 }\ngrid = { lr = [0.5] }'
    )
    assert read(sweep).specs[0].id == job('model = "m"\nhyper = { lr = 0.5, n = 1 }').id


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts.filter(bool), inner, max_size=3),
    max_leaves=6,
)
hypers = st.dictionaries(texts.filter(bool), values, max_size=5)


@given(hypers, st.lists(texts.filter(bool), max_size=4), st.integers(-1000, 1000), st.randoms(use_true_random=False))
def test_ids_do_not_depend_on_order_or_spelling(
    hyper: dict[str, Any], hosts: list[str], seed: int, random: Any
) -> None:
    plain = job(f'model = "m"\nseed = {seed}\ntrain_hosts = {toml(hosts)}\nhyper = {toml(hyper)}')
    keys = [f"seed = {float(seed)!r}", f"train_hosts = {toml(shuffled(hosts, random))}", 'model = "m"']
    random.shuffle(keys)
    respelt = job("\n".join([*keys, f"hyper = {toml(respelling(hyper, random))}"]))
    assert respelt.id == plain.id
    assert plain.id == job_id(Training(model="m", seed=seed, train_hosts=hosts, hyper=hyper))


def shuffled(items: list[Any], random: Random) -> list[Any]:
    return random.sample(items, len(items))


def respelling(value: Any, random: Random) -> Any:
    """The same value: whole numbers as floats where they are exact, keys in another order."""
    if isinstance(value, dict):
        return {key: respelling(value[key], random) for key in shuffled(list(value), random)}
    if isinstance(value, list):
        return [respelling(item, random) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(char):08x}" for char in value) + '"'
    return json.dumps(value)
