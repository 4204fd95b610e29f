"""What an editor is told of the manifest and of ostler.toml, held against the readers themselves."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from ostler.cli.main import run
from ostler.cli.schema import made
from ostler.domain.errors import BadInput
from ostler.gateway import schema as gateway_schema
from ostler.gateway.keys import CALLER_KEYS, GATEWAY_KEYS, GROUP_KEYS, MODEL_KEYS, PEER_KEYS, Keys
from ostler.hub import settings
from ostler.manifest import read as read_manifest
from ostler.manifest.keys import CAPABILITY_KEYS, DEFINITIONS, HOST_KEYS, JOB_KEYS, SWEEP_KEYS, shape_of
from ostler.worker import accounts

ROOT = Path(__file__).parents[2]
VALUES: list[Any] = [
    *(True, 0, 1, -1, 7, 1.0, 1.5, 0.0, -0.5, 2**53, 1e13, 70_000),
    *(
        "",
        " ",
        "x",
        "8g",
        "16 GiB",
        "10m",
        "90s",
        "auto",
        "none",
        "/health",
        "max",
        "cancel",
        "serial",
        "zone = eu",
        "a\0b",
    ),
    *([], ["a"], ["a", ""], [1], [["a"]], [{}], [{"lr": 0.1}], [{"lr": []}]),
    *(
        {},
        {"a": "b"},
        {"a": 1},
        {"a": [1, 2]},
        {"a": []},
        {"a=": "b"},
        {"strip": ["x"]},
        {"strip": ["model"]},
        {"sett": {}},
    ),
]
TABLES = {"hosts", "defaults", "jobs", "sweeps", "capability"}
MANIFEST = Draft7Validator(made("manifest"))
CONFIG = Draft7Validator(made("config"))


def is_valid(shape: dict[str, Any], value: Any) -> bool:
    return Draft7Validator({**shape, "definitions": DEFINITIONS}).is_valid(value)


def config_is_read(text: str, folder: Path) -> bool:
    file = folder / "ostler.toml"
    file.write_text(text)
    try:
        settings.load(file)
        accounts.load(file)
    except BadInput:
        return False
    return True


def as_toml(tables: dict[str, Any]) -> str:
    jobs = "".join(f"[[jobs]]\n{lines(job)}" for job in tables.get("jobs", []))
    sweeps = "".join(f"[[sweeps]]\n{lines(sweep)}" for sweep in tables.get("sweeps", []))
    defaults = f"[defaults]\n{lines(tables['defaults'])}" if "defaults" in tables else ""
    return defaults + jobs + sweeps


def lines(table: dict[str, Any]) -> str:
    return "".join(f"{key} = {inline(value)}\n" for key, value in table.items())


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


# One value at a time


@pytest.mark.parametrize(
    "keys", [JOB_KEYS, SWEEP_KEYS, HOST_KEYS, CAPABILITY_KEYS], ids=["job", "sweep", "host", "capability"]
)
def test_schema_and_reader_agree_about_every_value_of_every_key_of_the_manifest(keys: dict[str, Any]) -> None:
    for name, key in keys.items():
        if name in TABLES:
            continue
        for value in VALUES:
            taken = not list(key.faults(value))
            assert is_valid(shape_of(key), value) == taken, f"{name} = {value!r}"


LOOSER = {"labels", "metadata", "groups", "peers", "evict_costs", "macros", "api_keys", "cmd", "cmd_stop", "env"}
"""Keys of which the reader knows more than how one value looks, or has other words for it."""


@pytest.mark.parametrize(
    "keys",
    [MODEL_KEYS, GATEWAY_KEYS, GROUP_KEYS, CALLER_KEYS, PEER_KEYS],
    ids=["model", "gateway", "group", "caller", "peer"],
)
def test_schema_and_reader_agree_about_every_value_of_every_key_of_the_gateway(keys: Keys) -> None:
    for name, key in keys.items():
        if name in LOOSER:
            continue
        for value in VALUES:
            if (isinstance(value, str) and "\0" in value) or (isinstance(value, float) and value.is_integer()):
                continue  # of NULs editors need not warn, and JSON's 1.0 is a whole number
            assert is_valid(gateway_schema.shape_of(key.read), value) == reads(key.read, value), f"{name} = {value!r}"


@pytest.mark.parametrize("name", sorted(LOOSER & (MODEL_KEYS.keys() | GATEWAY_KEYS.keys())))
def test_where_the_reader_knows_more_the_schema_still_takes_all_that_it_takes(name: str) -> None:
    key = MODEL_KEYS.get(name) or GATEWAY_KEYS[name]
    shapes = {**gateway_schema.table(MODEL_KEYS)["properties"], **gateway_schema.gateway()["properties"]}
    wholes = {"groups", "peers", "evict_costs", "macros", "api_keys"}
    for value in VALUES:
        if name not in wholes and reads(key.read, value):
            assert is_valid(shapes[name], value), f"{name} = {value!r}"


def reads(read: Any, value: Any) -> bool:
    try:
        read(value, "here")
    except BadInput:
        return False
    return True


# Whole files

GOOD = {"name": "a", "command": ["true"]}


@pytest.mark.parametrize(
    "tables",
    [
        {"jobs": [GOOD]},
        {"jobs": [GOOD | {"comand": ["true"]}]},
        {"jobs": [GOOD | {"grid": {"lr": [1]}}]},
        {"jobs": [GOOD | {"priority": "high"}]},
        {"defaults": {"command": ["true"], "name": "b"}, "jobs": [{"model": "m"}]},
        {"defaults": {"comand": ["true"]}, "jobs": [GOOD]},
        {"sweeps": [GOOD | {"name": "a-{lr}", "grid": {"lr": [1, 2]}}]},
        {"sweeps": [GOOD | {"name": "a-{lr}", "grid": {"lr": []}}]},
        {"sweeps": [GOOD]},
        {"sweeps": [GOOD | {"grid": {"lr": [1]}, "list": [{"lr": 1}]}]},
        {"sweeps": [GOOD | {"name": "a-{lr}", "list": [{"lr": 1}]}]},
        {"job": [GOOD]},
    ],
    ids=lambda tables: json.dumps(tables)[:60],
)
def test_a_manifest_is_taken_by_both_or_by_neither(tables: dict[str, Any]) -> None:
    text = as_toml(tables) or f"[[job]]\n{lines(GOOD)}"
    try:
        read_manifest(text)
        read = True
    except BadInput:
        read = False
    assert MANIFEST.is_valid(tomllib.loads(text)) == read


@pytest.mark.parametrize(
    "text",
    [
        "",
        'ledger = "postgresql://db/x"\nstore = "/srv"\nhosts = ["a.example"]',
        "ledgr = 'x'",
        "ledger = 3",
        "hosts = 'a'",
        "[templates.t]\ngpu_count = 1\nenv = { A = 'b' }",
        "[templates.t]\ngpus = 1",
        "[templates.t]\nid = 'x'",
        "[templates.t]\nmin_vram_gb = 'auto'",
        "[templates.t]\nmin_vram_gb = 'much'",
        "[quotas]\nrunning_gpus = 4\n[quotas.users.ann]\nrunning_gpus = 8",
        "[quotas]\nrunning_gpu = 4",
        "[quotas.users.ann]\ngpus = 8",
        "[quotas]\nrunning_gpus = -1",
        "[scheduling]\nhold_after = '10m'\n[scheduling.weights]\na100 = 3.0",
        "[scheduling]\nhold_after = 'never'\nclaim_lease = '20m'",
        "[scheduling]\nhold_after = 'soon'",
        "[scheduling.weights]\na100 = 0",
        "[scheduling]\nholdafter = 3",
        "[retention]\njobs = '90d'\nmost_logs = '20g'\nmost_jobs = 5\nartifacts = 'never'",
        "[retention]\njob = '90d'",
        "[retention]\njobs = true",
        "[retention]\nmost_jobs = 'many'",
        "[limits]\nburst = 10",
        "[limits]\nburst = 0",
        "[limits]\nbursts = 10",
        "[disk]\nreserve = '2g'",
        "[disk]\nreserve = 'two'",
        "[disk]\nreserved = 2",
        "[models.a]\ncmd = 'serve --port ${PORT}'\nvram = '8g'\nttl = '5m'",
        "[models.a]\nvram = '8g'",
        "[models.a]\ncmd = 'serve'\nvrma = '8g'",
        "[models.a]\ncmd = 'serve'\nport = 0",
        "[models.a]\ncmd = 'serve'\nconcurrency = '${n}'\n[gateway]\nscheduler = 'fifo'\nmacros = { n = 2 }",
        "[gateway]\nscheduler = 'lifo'",
        "[gateway]\nmacros = { n = [1] }",
        "[gateway]\napi_keys = ['a', { key = 'b', user = 'ann' }]",
        "[gateway]\napi_keys = [{ user = 'ann' }]",
        "[gateway.peers.p]\nurl = 'http://x'\nmodels = ['m']",
        "[gateway.peers.p]\nurl = 'http://x'",
        "[gateway.peers.p]\nurl = 'http://x'\nmodels = ['m']\nkey = 'x'",
        "[worker]\nmemory_limit = 2.0",
        "[worker]\nmemory_limit = 0.5",
        "[worker]\nrunas = 'x'",
        "[s3]\nendpoint = 'https://x'",
        "[s3]\nendpoint = 'x'",
        "[s3]\nendpont = 'https://x'",
        "[notify.targets.team]\nurl = 'https://hooks.example/x'",
        "[notify.targets.team]\nurl = 'https://hooks.example/x'\ntopic = 'y'",
        "[notify.targets.team]\nuri = 'https://hooks.example/x'",
    ],
)
def test_a_configuration_is_taken_by_both_or_by_neither(text: str, tmp_path: Path) -> None:
    assert CONFIG.is_valid(tomllib.loads(text)) == config_is_read(text, tmp_path)


@pytest.mark.parametrize("key", settings.KEYS)
def test_every_key_of_the_settings_is_in_the_schema_and_a_misspelt_one_is_not(key: str, tmp_path: Path) -> None:
    assert CONFIG.schema["properties"][key].get("description"), f"hub/schema.py says nothing of {key}"
    assert not CONFIG.is_valid({key + "x": {}})
    assert not config_is_read(f"[{key}x]", tmp_path)


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/**/manifest*.toml")), ids=lambda file: file.parent.name)
def test_the_manifests_of_the_examples_are_valid(file: Path) -> None:
    assert list(MANIFEST.iter_errors(tomllib.loads(file.read_text()))) == []


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/**/ostler.toml")), ids=lambda file: file.parent.name)
def test_the_configurations_of_the_examples_are_valid(file: Path) -> None:
    assert list(CONFIG.iter_errors(tomllib.loads(file.read_text()))) == []


def test_the_command_prints_what_an_editor_reads(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("manifest", "config", "spec"):
        assert run(["schema", kind]) == 0
        printed = json.loads(capsys.readouterr().out)
        Draft7Validator.check_schema(printed)
    assert run(["schema", "job"]) == 2
    assert "'job' is not one of manifest, config, spec" in capsys.readouterr().err
