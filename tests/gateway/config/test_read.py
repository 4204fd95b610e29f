"""What `[models]` and `[gateway]` become: jobs, the scheduler's configuration, and the relay's."""

import hashlib
import math
from typing import Any

import msgspec
import pytest
from tests.gateway.config.reading import model, settings, value

from ostler.domain.job import HealthCheck, decode_spec
from ostler.gateway.control import Filters, KeyLimits, KeySetup, frame, frames_to_relay
from ostler.gateway.core.models import Group, Recipe, Sets
from ostler.gateway.keys import MODEL_KEYS

TWO = "[models.a]\ncmd = 'a'\naliases = ['x']\n[models.b]\ncmd = 'b'\n"
FULL = """
cmd = ["server", "--port", "${PORT}"]
cmd_stop = "stop --pid ${PID} --port=${PORT}"
env = { HOST = "${MODEL_ID}", THREADS = 4 }
aliases = ["gpt-4o-mini", "org/m"]
name = "Model"
description = "What it is"
metadata = { family = "x", sizes = [1, 2.5] }
unlisted = true
ttl = "15m"
pinned = true
vram = "16g"
memory = 34359738368
gpus = 2
cpus = 1.5
labels = ["zone = eu", "nvlink exists"]
check = "/v1/models"
load_timeout = "5m"
stop_timeout = 30
concurrency = 4
queue_limit = 0
request_limit = 8
priority = -3
filters = { strip = ["top_k"], set = { temperature = 0.7, stop = ["a"], extra = { deep = true } } }
upstream_name = "org/model"
on_client_abort = "drain"
max_instances = 3
load_s = 12.5
loading_updates = false
"""


def test_the_sample_here_has_every_key() -> None:
    assert {line.split(" = ")[0] for line in FULL.splitlines() if line} == MODEL_KEYS.keys() - {"port"}


def test_a_model_is_a_job_with_all_that_its_process_needs() -> None:
    spec = model(FULL).spec("job-1")
    assert decode_spec(msgspec.json.encode(spec)) == spec, "the hub would take it"
    assert spec.terms().stop_s == 30.0
    assert msgspec.to_builtins(spec) == {
        "id": "job-1",
        "name": "m",
        "type": "model",
        "user_id": "gateway",
        "gpu_count": 2,
        "min_vram_gb": 32.0,
        "min_memory_gb": 32.0,
        "min_cpu_cores": 1.5,
        "command": ["server", "--port", "{port}"],
        "env": {"HOST": "m", "THREADS": "4"},
        "health_check": {"readiness": "/v1/models"},
        "metadata": {
            "ostler.model": "m",
            "ostler.stop": ["stop", "--pid", "{pid}", "--port={port}"],
            "ostler.stop_s": 30.0,
        },
        "labels": ["zone = eu", "nvlink exists"],
        "max_attempts": 0,
    }


def test_the_rest_is_for_the_scheduler_and_the_relay() -> None:
    found = model(FULL)
    recipe = found.recipe()
    assert recipe == Recipe(
        name="m",
        digest=found.digest,
        aliases=("gpt-4o-mini", "org/m"),
        ttl_s=900.0,
        pinned=True,
        concurrency=4,
        max_instances=3,
        queue_limit=0,
        request_limit=8,
        priority=-3,
        load_s=12.5,
    )
    setup = found.setup()
    assert setup.filters == Filters(["top_k"], {"temperature": 0.7, "stop": ["a"], "extra": {"deep": True}})
    assert (setup.upstream_name, setup.unlisted, setup.on_client_abort, setup.loading_updates) == (
        *("org/model", True, "drain", False),
    )
    assert (found.load_timeout_s, found.stop_timeout_s, found.max_instances) == (300.0, 30.0, 3)


def test_only_the_command_is_needed() -> None:
    found = model("cmd = 'server'")
    assert found.spec("j").health_check == HealthCheck(readiness="/health")
    assert (found.load_timeout_s, found.stop_timeout_s, found.ttl_s, found.max_instances) == (120.0, 10.0, 0.0, 1)
    assert (found.concurrency, found.queue_limit, found.load_s) == (None, None, None)
    assert found.setup().loading_updates and not found.setup().unlisted and found.setup().document == {}


@pytest.mark.parametrize(
    ("given", "argv"),
    [
        ("""['a b', "--x=${PORT}", '#no comment', '']""", ["a b", "--x={port}", "#no comment", ""]),
        ("""'''a 'b c' \\\n  # not ${this}\n  --port ${PORT} d#e'''""", ["a", "b c", "--port", "{port}", "d#e"]),
        ("""'{python} -m server "${env.HOME}/m"'""", ["{python}", "-m", "server", "/home/ann/m"]),
        ("""['server', 8080, true, "${MODEL_ID}"]""", ["server", "8080", "true", "m"]),
    ],
)
def test_a_command_is_a_list_or_a_line_that_is_split_without_a_shell(given: str, argv: list[str]) -> None:
    assert value("cmd", given) == argv


def test_a_macro_may_bring_several_words_of_a_line() -> None:
    text = """
    [gateway.macros]
    server = "llama-server --port ${PORT} ${flags}"
    flags = "-ngl ${layers}"
    layers = 99
    [models."a/b"]
    cmd = "${server} -m ${MODEL_ID}.gguf"
    metadata = { layers = "${layers}", note = "${layers} layers" }
    """
    found = settings(text).models["a/b"]
    assert found.command == "llama-server --port {port} -ngl 99 -m a/b.gguf".split()
    assert found.metadata == {"layers": 99, "note": "99 layers"}


def test_a_port_that_is_given_is_known_everywhere_in_the_model() -> None:
    found = model("cmd = ['s', '${PORT}']\nport = 8999\nenv = { P = '${PORT}' }\nmetadata = { port = '${PORT}' }")
    assert (found.command, found.env, found.metadata) == (["s", "8999"], {"P": "8999"}, {"port": 8999})
    assert found.spec("j").metadata == {"ostler.model": "m", "ostler.port": 8999}


@pytest.mark.parametrize(
    ("given", "gib"),
    [
        ("'16g'", 16.0),
        ("'512m'", 0.5),
        ("'1.5 GiB'", 1.5),
        ("24", 24.0),
        ("0.5", 0.5),
        ("17179869184", 16.0),
        ("0", 0.0),
    ],
)
def test_sizes_are_text_or_bytes_or_a_small_number_of_gib(given: str, gib: float) -> None:
    assert value("vram", given) == value("memory", given) == gib


@pytest.mark.parametrize(
    ("given", "seconds"), [("90", 90.0), ("0.5", 0.5), ("'90s'", 90.0), ("'2h'", 7200.0), ("0", 0.0)]
)
def test_durations_are_seconds_or_text(given: str, seconds: float) -> None:
    assert value("ttl", given) == value("stop_timeout", given) == seconds


def test_a_model_without_a_check_is_ready_when_its_port_is_open() -> None:
    assert model("check = 'none'").spec("j").health_check is None


@pytest.mark.parametrize(
    "change",
    "cmd=['server','x'] cmd_stop='x' port=81 env={A='1'} vram='1g' memory='1g' gpus=1 cpus=1 labels=['a=b'] check='/x'".split(),
)
def test_another_process_has_another_digest(change: str) -> None:
    assert model(change.replace("=", " = ", 1)).digest != model("").digest


@pytest.mark.parametrize(
    "change",
    "ttl=5 pinned=true aliases=['y'] name='x' priority=1 concurrency=2 filters={strip=['a']} metadata={a=1} load_timeout=1".split(),
)
def test_what_its_process_does_not_see_leaves_the_digest(change: str) -> None:
    assert model(change.replace("=", " = ", 1)).digest == model("").digest


def test_macros_and_the_way_of_writing_leave_the_digest() -> None:
    plain = model("cmd = ['s', 'a b']\nenv = { A = '1', B = '2' }").digest
    assert model("""cmd = "s 'a b'"\nenv = { B = 2, A = 1 }""").digest == plain


# The gateway


def test_groups_sets_and_the_rest_are_the_schedulers() -> None:
    gateway = """
    [gateway]
    scheduler = "fifo"
    quantum = inf
    preload = ["x"]
    sets = [["a", "b"], ["b"]]
    evict_costs = { x = 5 }
    [gateway.groups.one]
    members = ["x"]
    swap = false
    [gateway.groups.two]
    members = ["b"]
    exclusive = false
    persistent = true
    """
    found = settings(gateway + TWO)
    assert found.scheduler == "fifo" and found.notes == []
    assert found.config.groups == (
        Group(members=("a",), swap=False),
        Group(members=("b",), exclusive=False, persistent=True),
    )
    assert found.config.sets == Sets(members=(("a", "b"), ("b",)), evict_costs={"a": 5.0})
    assert (found.config.quantum, found.config.preload) == (math.inf, ("a",))
    assert [recipe.name for recipe in found.config.models] == ["a", "b"]


def test_left_out_it_is_serial_and_empty() -> None:
    found = settings("")
    assert (found.scheduler, found.wanted, found.config.quantum) == ("serial", False, 8.0)
    assert settings(TWO).wanted and settings("[gateway.peers.p]\nurl = 'http://p'\nmodels = ['m']").wanted


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def test_keys_are_kept_as_digests_with_whose_they_are() -> None:
    text = """
    [gateway]
    api_keys = ["sk-1", "${env.HOME}", { key_env = "TEAM_KEY", user = "team", in_flight = 20 }, { key = "sk-2" }]
    """
    found = settings(text).keys
    assert found == [
        KeySetup(digest("sk-1"), "key-1", "user"),
        KeySetup(digest("/home/ann"), "key-2", "user"),
        KeySetup(digest("sk-team"), "team", "user", KeyLimits(20)),
        KeySetup(digest("sk-2"), "key-4", "user"),
    ]


PEERS = """
[gateway.peers.big]
url = "https://user.example/api/v1/"
api_key_env = "TEAM_KEY"
models = ["org/large", "shared", "a"]
filters = { strip = ["seed"] }
[gateway.peers.other]
url = "http://10.0.0.7:8000"
api_key = "k"
models = ["shared"]
"""


def test_models_of_peers_are_called_by_their_peers_name_and_by_their_own_where_it_is_theirs_alone() -> None:
    found = settings(PEERS + TWO)
    assert (found.peers["big"].url, found.peers["big"].api_key) == ("https://user.example/api", "sk-team")
    named = found.peer_models()
    assert {name: (one.peer.name, one.model, one.alias) for name, one in named.items()} == {
        "big/org/large": ("big", "org/large", "org/large"),
        "big/shared": ("big", "shared", ""),
        "big/a": ("big", "a", ""),
        "other/shared": ("other", "shared", ""),
    }


def test_a_model_of_the_fleet_goes_before_a_peers() -> None:
    text = PEERS + "[models.'big/shared']\ncmd = 'x'\n"
    assert "big/shared" not in settings(text).peer_models()
    assert settings(text).setup().models["big/shared"].upstream_name == ""


def test_the_relay_gets_all_names_and_all_keys() -> None:
    text = "[gateway]\napi_keys = ['k']\nmax_body = '1m'\nloading_updates = false\n" + PEERS + TWO
    token = KeySetup(digest("t"), "ann", "operator")
    text = "[gateway]\ncors_origins = ['https://a.example/', '*']\n" + text.removeprefix("[gateway]\n")
    setup = settings(text + "loading_updates = true\n").setup([token], "7")
    assert setup.cors_origins == ["https://a.example", "*"]
    assert list(setup.models) == ["a", "b", "big/org/large", "big/shared", "big/a", "other/shared"]
    assert [setup.models[name].loading_updates for name in ("a", "b")] == [False, True]
    shown = settings(text.replace("loading_updates = false", "loading_updates = 'text'")).setup()
    assert [shown.models[name].loading_updates for name in ("a", "b")] == ["text", "text"]
    assert frames_to_relay().feed(frame([shown])) == [shown], "it survives the wire"
    peer = setup.models["big/org/large"]
    assert (peer.aliases, peer.upstream_name, peer.filters.strip) == (["org/large"], "org/large", ["seed"])
    assert (setup.keys[1:], setup.max_body_bytes, setup.version) == ([token], 1024 * 1024, "7")
    assert frames_to_relay().feed(frame([setup])) == [setup], "it survives the wire"


# What GET /v1/models says of a model


@pytest.mark.parametrize(
    ("keys", "document"),
    [
        ("", {}),
        ("name = 'N'\ndescription = 'D'", {"name": "N", "description": "D"}),
        ("metadata = { a = [1, { b = 2 }] }", {"meta": {"a": [1, {"b": 2}]}}),
        (
            "metadata = { a = 1, capabilities = { in = ['text', 'image'], out = ['text'], tools = true, context = 8192 } }",
            {
                "architecture": {
                    "input_modalities": ["text", "image"],
                    "output_modalities": ["text"],
                    "modality": "text+image->text",
                },
                "capabilities": {"vision": True, "function_calling": True},
                "supported_parameters": ["tools", "tool_choice"],
                "context_length": 8192,
                "meta": {"a": 1, "n_ctx": 8192},
            },
        ),
        (
            "metadata = { capabilities = { in = ['audio', 'image'], out = ['text', 'image'] } }",
            {
                "architecture": {
                    "input_modalities": ["audio", "image"],
                    "output_modalities": ["text", "image"],
                    "modality": "audio+image->text+image",
                },
                "capabilities": {"vision": True, "audio_transcriptions": True, "image_to_image": True},
            },
        ),
        ("metadata = { capabilities = { reranker = true } }", {"capabilities": {"reranker": True}}),
        ("metadata = { capabilities = { in = ['text'], out = ['audio'] } }", {"capabilities": {"audio_speech": True}}),
        ("metadata = { capabilities = 'many' }", {"meta": {"capabilities": "many"}}),
        ("metadata = { capabilities = {} }", {}),
    ],
)
def test_capabilities_are_spelled_out_as_clients_look_for_them(keys: str, document: dict[str, Any]) -> None:
    found = model(keys).setup().document
    assert {key: found[key] for key in document} == document
    assert found.keys() - document.keys() <= {"architecture"}


# Notes


def test_what_serial_does_not_heed_is_noted() -> None:
    text = "[gateway]\nquantum = 2\n[gateway.groups.g]\nmembers = ['a']\n" + TWO + "priority = 3\n"
    where = [where for where, _ in settings(text).notes]
    assert where == ["gateway.groups", "gateway.quantum", "models.b.priority"]
    assert settings("[gateway]\nscheduler = 'fifo'\nquantum = 2\n" + TWO + "priority = 3\n").notes == []


def test_a_model_in_no_set_is_noted() -> None:
    text = "[gateway]\nscheduler = 'fifo'\nsets = [['a']]\n" + TWO
    ((where, what),) = settings(text).notes
    assert where == "models.b" and "in no set" in what
