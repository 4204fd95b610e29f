"""llama-swap's configuration, carried over."""

import datetime
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.config.reading import settings

from ostler.domain.errors import BadInput
from ostler.gateway.control import Filters
from ostler.gateway.core.models import Group, Sets
from ostler.gateway.llamaswap import DROPPED, import_yaml
from ostler.gateway.matrix import MOST_SETS, Matrix, Unclear
from ostler.gateway.settings import GatewaySettings
from ostler.gateway.toml import written

SAMPLE = Path(__file__).with_name("llama-swap.yaml")
ENV = {"HOME": "/home/ann", "API_KEY": "sk-2", "OPENROUTER_API_KEY": "or-1"}


def imported(given: Any) -> tuple[GatewaySettings, dict[str, str]]:
    text, remarks = import_yaml(given if isinstance(given, str) else yaml.safe_dump(given, sort_keys=False))
    return settings(text, ENV), dict(remarks)


@pytest.fixture(scope="module")
def sample() -> tuple[GatewaySettings, dict[str, str]]:
    return imported(SAMPLE.read_text())


def test_a_model_of_the_sample_comes_over_whole(sample: tuple[GatewaySettings, dict[str, str]]) -> None:
    llama = sample[0].models["llama"]
    assert llama.command == [
        *"/opt/llama.cpp/llama-server --port {port} --model".split(),
        "/home/ann/models/llama 8B.gguf",
        *"--ctx-size 16384 --temp 0.7".split(),
    ]
    assert llama.stop_command == ["kill", "-INT", "{pid}"]
    assert (llama.title, llama.description, llama.upstream_name) == (
        *("llama 3.1 8B", "A small but capable model", "llama:8b"),
    )
    assert llama.aliases == ["gpt-4o-mini", "gpt-3.5-turbo", "llama:high"]
    assert llama.env == {"LLAMA_LOG": "a=b"}
    assert (llama.check, llama.ttl_s, llama.load_timeout_s, llama.stop_timeout_s) == ("/custom", 60.0, 500.0, 5.0)
    assert (llama.concurrency, llama.request_limit, llama.priority, llama.loading_updates) == (None, 4, 10, False)
    assert llama.filters == Filters(
        ["temperature", "top_p"], {"temperature": 0.7, "chat_template_kwargs": {"enable_thinking": False}}
    )
    capabilities = {"in": ["text", "image"], "out": ["text"], "tools": True, "context": 16384}
    assert llama.metadata == {
        "temperature": 0.7,
        "note": "llama with temp=0.7 and context 16384",
        "a_list": [1, 1.5, "llama", {"deep": 16384}],
        "seen": "2026-01-02",
        "capabilities": capabilities,
    }


def test_the_other_models_of_the_sample_come_over(sample: tuple[GatewaySettings, dict[str, str]]) -> None:
    models = sample[0].models
    qwen, docker = models["qwen2.5"], models["docker/llama"]
    assert (qwen.port, qwen.check, qwen.unlisted, qwen.ttl_s, qwen.metadata) == (
        8999,
        "none",
        True,
        0.0,
        {"port": 8999},
    )
    assert (docker.ttl_s, docker.stop_timeout_s, docker.port) == (600.0, 20.0, 0)
    assert docker.command[:9] == "docker run --name docker/llama --init --rm -p {port}:8080 -v".split()
    assert docker.stop_command == ["docker", "stop", "docker/llama"]


def test_the_gateway_of_the_sample_comes_over(sample: tuple[GatewaySettings, dict[str, str]]) -> None:
    found = sample[0]
    assert (found.scheduler, found.config.preload, len(found.keys)) == ("fifo", ("llama",), 2)
    assert found.config.groups == (
        Group(members=("qwen2.5",), swap=False, exclusive=False, persistent=True),
        Group(members=("llama",)),
        Group(members=("docker/llama", "elsewhere")),
    )
    peer = found.peers["openrouter"]
    assert (peer.url, peer.api_key) == ("https://openrouter.ai/api", "or-1")
    assert peer.models == ["meta-llama/llama-3.1-8b-instruct", "z-ai/glm-4.7"]
    assert peer.filters == Filters(["temperature"], {"provider": {"data_collection": "deny"}})


def test_all_that_did_not_come_over_is_told(sample: tuple[GatewaySettings, dict[str, str]]) -> None:
    told = sample[1]
    assert told.keys() == {
        *DROPPED,
        "models",
        "models.elsewhere.newThing",
        "models.elsewhere.proxy",
        "models.llama.compat",
        "models.llama.env.CUDA_VISIBLE_DEVICES",
        "models.llama.env.LLAMA_PORT",
        "models.llama.filters.setParams.stop",
        "models.llama.filters.setParamsByID",
        "models.llama.metadata.port",
        "models.llama.timeouts",
        'models."qwen2.5".cmd',
        "peers.openrouter.timeouts",
        "routing.scheduler.fifo.priority.nobody",
    }
    assert "vram" in told["models"]
    assert "peer" in told["models.elsewhere.proxy"]


def test_a_command_stays_readable() -> None:
    text, _ = import_yaml(SAMPLE.read_text())
    assert "cmd = '''\n# ${server} is a macro" in text
    assert 'server = """' not in text and "[gateway.macros]" in text


@pytest.mark.parametrize(("given", "ours"), [(True, "text"), (False, False)])
def test_the_state_of_loading_is_text_in_a_chat_or_nothing(given: bool, ours: object) -> None:
    assert imported({**ONE, "sendLoadingState": given})[0].models["a"].loading_updates == ours
    assert imported(with_model(sendLoadingState=given))[0].models["a"].loading_updates == ours


def test_aliases_that_are_no_list_are_to_be_corrected_whatever_else_names_the_model() -> None:
    given = with_model(aliases=3, filters={"setParamsByID": {"a:high": {"effort": 1}}})
    told = dict(import_yaml(yaml.safe_dump(given))[1])
    assert told["models.a.aliases"] == "must be corrected: must be a list, not 3"


# What the two understand differently

ONE = {"models": {"a": {"cmd": "a"}}, "apiKeys": ["k"]}


def with_model(**keys: Any) -> Any:
    return {**ONE, "models": {"a": {"cmd": "a", **keys}}}


def three(**more: Any) -> Any:
    return {"models": {name: {"cmd": name} for name in "abc"}, "apiKeys": ["k"], **more}


def test_models_in_no_group_are_a_group() -> None:
    assert imported(three())[0].config.groups == (Group(members=("a", "b", "c")),)
    found = imported(three(groups={"default": {"members": ["b"]}}))[0].config.groups
    assert [group.members for group in found] == [("b",), ("a", "c")]
    assert imported(ONE)[0].config.groups == ()


def test_a_matrix_becomes_sets_and_whoever_is_in_none_runs_alone() -> None:
    matrix = {"vars": {"x": "a"}, "sets": {"s": "x & b"}, "evict_costs": {"x": 5}}
    router = {"use": "matrix", "settings": {"matrix": matrix}}
    for file in (three(matrix=matrix), three(routing={"router": router})):
        config = imported(file)[0].config
        assert config.sets == Sets(members=(("a", "b"), ("c",)), evict_costs={"a": 5.0})
        assert config.groups == ()


def test_a_router_that_is_not_used_counts_for_nothing() -> None:
    router = {"use": "group", "settings": {"matrix": {"sets": {"s": "a & b"}}, "groups": {"g": {"members": ["a"]}}}}
    config = imported(three(routing={"router": router}))[0].config
    assert config.sets == Sets() and [group.members for group in config.groups] == [("a",), ("b", "c")]


def test_without_keys_the_difference_is_told() -> None:
    assert "api_keys" in imported({"models": {"a": {"cmd": "a"}}})[1]["apiKeys"]
    assert "apiKeys" not in imported(ONE)[1]


@pytest.mark.parametrize(
    ("top", "own", "ttl"), [({}, {}, 0.0), ({"globalTTL": 9}, {}, 9.0), ({"globalTTL": 9}, {"ttl": 0}, 0.0)]
)
def test_the_time_to_live_of_all_is_each_models(top: Any, own: Any, ttl: float) -> None:
    assert imported({**with_model(**own), **top})[0].models["a"].ttl_s == ttl


def test_timeouts_are_at_least_what_llama_swap_makes_of_them() -> None:
    found = imported({**ONE, "healthCheckTimeout": 3, "unloadTimeout": 0})[0].models["a"]
    assert (found.load_timeout_s, found.stop_timeout_s) == (15.0, 10.0)


@pytest.mark.parametrize(
    ("proxy", "port"),
    [
        ("http://localhost:${PORT}", 0),
        ("http://127.0.0.1:9000", 9000),
        ("http://localhost:${p}/", 9001),
        ("http://localhost", 80),
        ("http://[::1]:9002", 9002),
    ],
)
def test_a_proxy_on_the_same_machine_is_a_port(proxy: str, port: int) -> None:
    found, told = imported(with_model(proxy=proxy, macros={"p": 9001}))
    assert found.models["a"].port == port
    assert "models.a.proxy" not in told


@pytest.mark.parametrize("proxy", ["http://box:80", "https://localhost:9000", "http://localhost:9000/base"])
def test_a_proxy_elsewhere_is_told(proxy: str) -> None:
    assert "models.a.proxy" in imported(with_model(proxy=proxy))[1]


def test_a_macro_of_one_model_changes_those_of_all_that_use_it() -> None:
    given = three(macros={"ctx": 1, "args": "-c ${ctx}", "all": "s ${args} ${other}", "other": 2})
    given["models"]["a"] = {"cmd": "${all} ${mine}", "macros": {"ctx": 9, "mine": "-m ${MODEL_ID}"}}
    given["models"]["b"] = {"cmd": "${all}"}
    models = imported(given)[0].models
    assert (models["a"].command, models["b"].command) == ("s -c 9 2 -m a".split(), "s -c 1 2".split())


def test_serial_stays_serial_and_what_is_not_known_becomes_fifo() -> None:
    assert imported({**ONE, "routing": {"scheduler": {"use": "serial"}}})[0].scheduler == "serial"
    found, told = imported({**ONE, "routing": {"scheduler": {"use": "clever"}}})
    assert found.scheduler == "fifo" and "routing.scheduler.use" in told


def test_what_was_wrong_before_is_told_as_to_be_corrected() -> None:
    given = three(groups={"g": {"members": "b"}}, hooks={"on_startup": {"preload": ["a"], "dance": 1}, "later": 2})
    text, remarks = import_yaml(yaml.safe_dump(given))
    told = dict(remarks)
    assert told["gateway.groups.g.members"].startswith("must be corrected: must be a list, not 'b'")
    assert {"hooks.later", "hooks.on_startup.dance"} <= told.keys()
    assert 'members = "b"' in text


def test_models_that_are_not_in_the_file_are_left_out_of_all_that_names_them() -> None:
    startup = {"on_startup": {"preload": ["nobody", "a"]}}
    found, told = imported(three(groups={"g": {"members": ["b", "nobody"]}, "h": {"members": ["x"]}}, hooks=startup))
    assert [group.members for group in found.config.groups] == [("b",), ("a", "c")]
    assert found.config.preload == ("a",)
    for where in ("hooks.on_startup.preload.nobody", "groups.g.members.nobody", "groups.h.members.x", "groups.h"):
        assert told[where].startswith("left out: "), where
    matrix = {"sets": {"s": "a & nobody", "t": "x | y"}, "evict_costs": {"a": 2, "x": 3}}
    found, told = imported(three(matrix=matrix))
    assert found.config.sets == Sets(members=(("a",), ("b",), ("c",)), evict_costs={"a": 2.0})
    assert {"matrix.sets.nobody", "matrix.sets.x", "matrix.sets.y", "matrix.evict_costs.x"} <= told.keys()


# A file in the manner of llama-swap's own example

TOUR = Path(__file__).with_name("llama-swap-tour.yaml")
TOUR_ENV = {"HOME": "/home/ann", "KEY_A": "a", "KEY_B": "b", "CLOUD_KEY": "c"}


def toured(text: str) -> tuple[GatewaySettings, dict[str, str]]:
    """The settings of an imported file, of which nothing must be corrected by hand."""
    written_toml, remarks = import_yaml(text)
    assert [remark for remark in remarks if "must be corrected" in remark.what] == []
    return settings(written_toml, TOUR_ENV), dict(remarks)


def test_a_tour_of_all_keys_needs_no_correction_by_hand() -> None:
    found, told = toured(TOUR.read_text())
    chat, secret, boxed = (found.models[name] for name in ("chat", "secret", "boxed"))
    assert chat.command == (
        "/opt/engine --port 9990 --weights /home/ann/shelf/chat.gguf --context 8192 --heat 0.3".split()
    )
    assert chat.aliases == ["talk", "gossip", "chat:more"]
    assert (chat.port, chat.ttl_s, chat.loading_updates, chat.request_limit) == (9990, 5.0, False, None)
    assert chat.metadata["note"] == "chat on 9990, with 8192" and chat.metadata["parts"] == [1, 0.3, {"of": "chat"}]
    assert (secret.unlisted, secret.request_limit, secret.loading_updates, secret.ttl_s) == (True, 3, "text", 30.0)
    assert boxed.stop_command == ["podman", "stop", "boxed"]
    assert (len(found.keys), found.config.preload, list(found.peers)) == (3, ("chat",), ["far", "cloud"])
    assert [(group.members, group.swap) for group in found.config.groups] == [
        *((("boxed",), False), (("chat", "secret"), True)),
    ]
    assert chat.priority == 2
    assert {"tailcat", "hooks.on_startup.profile", "peers.strange.proxy", "models.chat.aliases"} <= told.keys()


def test_its_matrix_needs_none_either() -> None:
    found, _ = toured(TOUR.read_text().replace("use: group", "use: matrix"))
    assert found.config.sets == Sets(
        members=(("chat", "boxed"), ("boxed",), ("chat", "boxed", "secret"), ("boxed", "secret")),
        evict_costs={"chat": 20.0},
    )


# Files that are none


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "has no `models`"),
        ("[1, 2]", "has no `models`"),
        ("models: [a]", "has no `models`"),
        ("models: {a: {cmd: x}", "cannot be read as YAML"),
        ("a: b: c", "cannot be read as YAML"),
        ("models: !!python/object/apply:os.getcwd []", "cannot be read as YAML"),
        ("\x00", "cannot be read as YAML"),
    ],
)
def test_what_is_no_configuration_of_llama_swap_is_refused(text: str, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        import_yaml(text)


def test_without_pyyaml_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(BadInput, match="pip install pyyaml"):
        import_yaml("models: {}")


TEXTS = st.sampled_from(
    ["a", "b & c", "+s", "${PORT}", "${m}", "K=${PORT}", "http://localhost:80", "x 'y", "", "é\x7f"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70_000) | st.floats() | TEXTS | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OF_A_MODEL = (
    "macros cmdStop proxy env aliases checkEndpoint ttl unloadTimeout useModelName filters metadata concurrencyLimit "
    "sendLoadingState unlisted timeouts capabilities name what"
).split()
OF_ALL = "healthCheckTimeout globalTTL unloadTimeout apiKeys macros peers".split()
OF_PARTS = "use settings groups matrix sets vars scheduler router on_startup members".split()
MODEL = st.fixed_dictionaries({"cmd": TEXTS}, optional=dict.fromkeys(OF_A_MODEL, VALUES))
INNER = st.fixed_dictionaries({}, optional=dict.fromkeys(OF_PARTS, VALUES))
PARTS = st.fixed_dictionaries({}, optional=dict.fromkeys(OF_PARTS, INNER | VALUES))
FILES = st.fixed_dictionaries(
    {"models": st.dictionaries(TEXTS, MODEL | VALUES, max_size=3)},
    optional={**dict.fromkeys(OF_ALL, VALUES), **dict.fromkeys("groups matrix routing hooks".split(), PARTS | VALUES)},
)


@given(FILES)
def test_whatever_the_file_says_the_result_is_toml_and_what_is_wrong_is_told(given: dict[str, Any]) -> None:
    text, remarks = import_yaml(yaml.safe_dump(given))
    tables = tomllib.loads(text)
    assert tables.get("models", {}).keys() == given["models"].keys()
    must = [remark for remark in remarks if remark.what.startswith("must be corrected")]
    if not must:
        settings(text, {})


# Its parts

PLAIN = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), PLAIN, max_size=5))
def test_what_is_written_is_read_again(tables: dict[str, Any]) -> None:
    assert tomllib.loads(written(tables)) == tables


@pytest.mark.parametrize(
    ("expression", "sets"),
    [
        ("a", [("a",)]),
        ("a & b", [("a", "b")]),
        ("a | b", [("a",), ("b",)]),
        ("a & (b | c)", [("a", "b"), ("a", "c")]),
        ("(a | b) & (c | d)", [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]),
        ("a & a | b&a", [("a",), ("b", "a")]),
        ("+other & q", [("m-1.5", "x", "q"), ("y", "q")]),
        (" ((a)) ", [("a",)]),
    ],
)
def test_an_expression_of_the_matrix_is_a_choice_of_sets(expression: str, sets: list[tuple[str, ...]]) -> None:
    matrix = Matrix({"s": expression, "other": "m & x | y"}, lambda name: {"m": "m-1.5"}.get(name, name))
    assert matrix.sets("s") == sets


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("", "ends where a model should be"),
        ("a &", "ends where a model should be"),
        ("a b", "has 'b' where it should end"),
        ("& a", "has '&' where a model should be"),
        ("(a", "a parenthesis is not closed"),
        ("a)", "where it should end"),
        ("a ^ b", "has '^', which means nothing"),
        ("+nope", "there is no set 'nope'"),
        ("a & +s", "stands for itself: s → s"),
        (" & ".join(f"(a{n} | b{n})" for n in range(20)), f"stands for more than {MOST_SETS} sets"),
    ],
)
def test_an_expression_that_cannot_be_understood_is_told(expression: str, what: str) -> None:
    with pytest.raises(Unclear) as error:
        Matrix({"s": expression}, str).sets("s")
    assert what in str(error.value)
    told = imported(three(matrix={"sets": {"s": expression}}))[1]
    assert told["matrix.sets.s"].startswith("left out: it ")


def test_dates_become_text() -> None:
    found, _ = imported(with_model(metadata={"day": datetime.date(2026, 1, 2)}))
    assert found.models["a"].metadata == {"day": "2026-01-02"}
