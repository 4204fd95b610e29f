"""All that can be wrong with a configuration is told at once, each mistake at its key."""

import contextlib
from pathlib import Path

import pytest
from tests.gateway.config.reading import settings

from ostler.domain.errors import BadInput
from ostler.gateway.keys import GATEWAY_KEYS, MODEL_KEYS
from ostler.hub import settings as hub_settings

MODELS = "[models.a]\ncmd = 'a'\naliases = ['x']\n[models.b]\ncmd = 'b'\n"


def errors(text: str) -> list[tuple[str, str]]:
    with pytest.raises(BadInput) as error:
        settings(text)
    assert str(error.value) == "\n".join(f"{where}: {what}" for where, what in error.value.errors)
    return error.value.errors


def one_error(text: str) -> tuple[str, str]:
    (found,) = errors(text)
    return found


@pytest.mark.parametrize(
    ("line", "place", "what"),
    [
        ("tll = 3", "tll", "unknown key 'tll'; did you mean 'ttl'?"),
        ("VRAM = 3", "VRAM", "unknown key 'VRAM'; did you mean 'vram'?"),
        ("cmdStop = 'x'", "cmdStop", "did you mean 'cmd_stop'?"),
        ("proxy = 'http://x'", "proxy", "did you mean 'port'?"),
        ("useModelName = 'x'", "useModelName", "did you mean 'upstream_name'?"),
        ("zzz = 1", "zzz", "unknown key 'zzz'; there are cmd, cmd_stop, port"),
        ("cmd_stop = ''", "cmd_stop", "must name a program"),
        ("cmd_stop = []", "cmd_stop", "must name a program"),
        ("cmd_stop = ['', 'x']", "cmd_stop", "must name a program"),
        ("cmd_stop = {}", "cmd_stop", "must be a list, not a table"),
        ("cmd_stop = ['x', []]", "cmd_stop[1]", "must be a string, not a list"),
        ("cmd_stop = '''x 'y'''", "cmd_stop", "cannot be split into words: the last ' is not closed"),
        ('cmd_stop = "x\\u0000"', "cmd_stop", "must not contain NUL"),
        ("cmd_stop = '${NOPE}'", "cmd_stop", "there is no macro 'NOPE'"),
        ("port = 0", "port", "must be a whole number from 1 to 65535, not 0"),
        ("port = '${PORT}'", "port", "${PORT} is known only where the server starts"),
        ("env = ['A=1']", "env", "must be a table, not a list"),
        ("env = { A = true }", "env.A", "must be a string, not true"),
        ("env = { 'A=B' = '' }", 'env."A=B"', "without '=' and NUL"),
        ("env = { P = '${PORT}' }", "env.P", "cmd = 'env NAME=${PORT} …'"),
        ("aliases = 'x'", "aliases", "must be a list, not 'x'"),
        ("aliases = ['', 3]", "aliases[0]", "must not be empty"),
        ("name = 3", "name", "must be a string, not 3"),
        ("metadata = 3", "metadata", "must be a table, not 3"),
        ("metadata = { a = [1979-05-27] }", "metadata.a[0]", "dates and times must be in quotes"),
        ("metadata = { a = { b = nan } }", "metadata.a.b", "must be a finite number, not nan"),
        ("unlisted = 1", "unlisted", "must be true or false, not 1"),
        ("ttl = -1", "ttl", "a duration cannot be -1"),
        ("ttl = 'soon'", "ttl", "'soon' is not a duration; write it like '90s'"),
        ("ttl = true", "ttl", "True is not a duration"),
        ("vram = 'big'", "vram", "'big' is not a size; write it like '512m'"),
        ("vram = -1", "vram", "a size cannot be -1"),
        ("memory = []", "memory", "must be a size such as '8g', not a list"),
        ("memory = true", "memory", "expected a size such as '8g'"),
        ("gpus = 0.5", "gpus", "must be a whole number from 0"),
        ("cpus = -1", "cpus", "must be a number from 0 on, not -1"),
        ("cpus = inf", "cpus", "must be a number from 0 on, not inf"),
        ("labels = ['zone']", "labels[0]", "write 'label op value'"),
        ("check = 'health'", "check", "must be a path that begins with '/', or 'none', not 'health'"),
        ("load_timeout = 0", "load_timeout", "must be more than 0"),
        ("stop_timeout = inf", "stop_timeout", "a duration cannot be inf"),
        ("concurrency = 0", "concurrency", "must be a whole number from 1"),
        ("queue_limit = -1", "queue_limit", "must be a whole number from 0"),
        ("request_limit = 0", "request_limit", "must be a whole number from 1"),
        ("concurrencyLimit = 4", "concurrencyLimit", "did you mean 'request_limit'?"),
        ("priority = 1000001", "priority", "must be a whole number from -1000000 to 1000000"),
        ("filters = { stripp = [] }", "filters.stripp", "did you mean 'strip'?"),
        ("filters = { strip = 'a, b' }", "filters.strip", "must be a list"),
        ("filters = { strip = ['model'] }", "filters.strip", "'model' is never touched"),
        ("filters = { set = { model = 'x' } }", "filters.set", "its name there is `upstream_name`"),
        ("filters = { set = { a = 1979-05-27 } }", "filters.set.a", "dates and times"),
        ("upstream_name = ''", "upstream_name", "must not be empty"),
        ("on_client_abort = 'drian'", "on_client_abort", "'drian' is not one of its values; did you mean 'drain'?"),
        ("max_instances = 0", "max_instances", "must be a whole number from 1"),
        ("load_s = 0", "load_s", "must be more than 0"),
    ],
)
def test_a_wrong_key_of_a_model_is_told(line: str, place: str, what: str) -> None:
    found = errors(f"[models.m]\ncmd = 's'\n{line}")
    assert found[0][0] == f"models.m.{place}"
    assert what in found[0][1]


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("[models.m]", "models.m", "has no `cmd`"),
        ("[models]\nm = 3", "models.m", "must be a table, not 3"),
        ("[models.'']\ncmd = 's'", 'models.""', "a model's name has 1 to 256 characters"),
        (f"[models.{'x' * 257}]\ncmd = 's'", f"models.{'x' * 257}", "a model's name has 1 to 256 characters"),
        ('[models."a\\u001b"]\ncmd = "s"', 'models."a\\u001b"', "none of them unprintable"),
        ("[models.qwen2.5]\ncmd = 's'", "models.qwen2.5", """a name with dots is put in quotes: [models."qwen2.5"]"""),
        ("[models.a.b.c]\ncmd = 's'", "models.a.b", """a name with dots is put in quotes: [models."a.b.c"]"""),
        ("[models.'a.b']\ncmd = 's'\ntl = 1", 'models."a.b".tl', "did you mean 'ttl'?"),
        (MODELS + "aliases = ['x']", "models.b.aliases[0]", "'x' is already a name of 'a'; keep one"),
        (MODELS + "aliases = ['a']", "models.b.aliases[0]", "'a' is already a name of 'a'; keep one"),
        (MODELS + "aliases = ['b']", "models.b.aliases[0]", "'b' is already a name of 'b'; keep one"),
    ],
)
def test_a_wrong_model_is_told(text: str, where: str, what: str) -> None:
    found = dict(errors(text))
    assert what in found[where]


@pytest.mark.parametrize(
    ("lines", "where", "what"),
    [
        ("schedular = 'fifo'", "gateway.schedular", "did you mean 'scheduler'?"),
        ("apiKeys = []", "gateway.apiKeys", "did you mean 'api_keys'?"),
        ("scheduler = 'lifo'", "gateway.scheduler", "'lifo' is not one of its values; did you mean 'fifo'?"),
        ("scheduler = 3", "gateway.scheduler", "3 is not one of its values; there are serial, fifo"),
        ("quantum = -1", "gateway.quantum", "must be a number from 0 to inf, not -1"),
        ("quantum = nan", "gateway.quantum", "must be a number from 0 to inf, not nan"),
        ("preload = ['aa']", "gateway.preload[0]", "there is no model 'aa'"),
        ("preload = 'a'", "gateway.preload", "must be a list, not 'a'"),
        ("max_body = 'x'", "gateway.max_body", "is not a size"),
        ("cors_origins = '*'", "gateway.cors_origins", "must be a list"),
        ("cors_origins = ['chat.example']", "gateway.cors_origins[0]", "must be an origin such as 'https://"),
        ("cors_origins = ['https://a/b']", "gateway.cors_origins[0]", "must be an origin such as 'https://"),
        ("cors_origins = ['https://a?b']", "gateway.cors_origins[0]", "must be an origin such as 'https://"),
        ("cors_origins = ['https://a:x']", "gateway.cors_origins[0]", "must be an origin such as 'https://"),
        ("loading_updates = 'yes'", "gateway.loading_updates", "must be true, false or 'text'"),
        ("sets = [['a'], ['nobody']]", "gateway.sets[1][0]", "there is no model 'nobody'; there are a, b, x"),
        ("sets = [['a', 'x']]", "gateway.sets[0]", "has the same model twice"),
        ("sets = ['a']", "gateway.sets[0]", "must be a list, not 'a'"),
        ("evict_costs = { nobody = 1 }", "gateway.evict_costs.nobody", "there is no model 'nobody'"),
        ("evict_costs = { a = -1 }", "gateway.evict_costs.a", "must be a number from 0 on"),
        ("groups = []", "gateway.groups", "must be a table, not a list"),
        ("groups.g = 3", "gateway.groups.g", "must be a table, not 3"),
        ("groups.g.swap = true", "gateway.groups.g", "has no `members`"),
        ("groups.g.members = []", "gateway.groups.g", "has no `members`"),
        ("groups.g.members = ['aa']", "gateway.groups.g.members[0]", "there is no model 'aa'"),
        ("groups.g = { members = ['a'], swop = true }", "gateway.groups.g.swop", "did you mean 'swap'?"),
        ("groups.g = { members = ['a'], swap = 1 }", "gateway.groups.g.swap", "must be true or false"),
        (
            "groups.g.members = ['a']\ngroups.h.members = ['x']",
            "gateway.groups.h.members",
            "'a' is a member of 'g' already",
        ),
        ("groups.g.members = ['a', 'a']", "gateway.groups.g.members", "'a' is a member of 'g' already"),
        ("api_keys = 'sk'", "gateway.api_keys", "must be a list"),
        ("url = 'models.example'", "gateway.url", "'models.example' is not a URL"),
        ("api_keys = [3]", "gateway.api_keys[0]", "must be a table, not 3"),
        ("api_keys = ['']", "gateway.api_keys[0].key", "must not be empty"),
        ("api_keys = [{ user = 'u' }]", "gateway.api_keys[0]", "has neither `key` nor `key_env`"),
        ("api_keys = [{ key = 'a', key_env = 'HOME' }]", "gateway.api_keys[0]", "has both `key` and `key_env`"),
        ("api_keys = [{ key_env = 'NOPE' }]", "gateway.api_keys[0].key_env", "the variable 'NOPE' is not set"),
        ("api_keys = [{ key_env = 'EMPTY' }]", "gateway.api_keys[0].key_env", "the variable 'EMPTY' is not set"),
        ("api_keys = [{ key = 'a', in_flight = 0 }]", "gateway.api_keys[0].in_flight", "must be a whole number from 1"),
        ("api_keys = [{ key = 'a', usr = 'u' }]", "gateway.api_keys[0].usr", "did you mean 'user'?"),
        ("api_keys = ['a', { key = 'a' }]", "gateway.api_keys[1]", "is the same key as one before it"),
        ("api_keys = ['${env.NOPE}']", "gateway.api_keys[0]", "the variable 'NOPE' is not set"),
        ("preload = ['${MODEL_ID}']", "gateway.preload[0]", "it can be used in [models] only"),
        ("macros = []", "gateway.macros", "must be a table, not a list"),
        ("macros.a = '${a}'", "gateway.macros.a", "stands for itself: a → a"),
        ("peers.p.models = ['m']", "gateway.peers.p", "has no `url`"),
        ("peers.p.url = 'http://p'", "gateway.peers.p", "has no `models`"),
        ("peers.p = { url = 'p', models = ['m'] }", "gateway.peers.p.url", "'p' is not a URL such as"),
        ("peers.p = { url = 'ftp://p', models = ['m'] }", "gateway.peers.p.url", "is not a URL"),
        ("peers.p = { url = 'http://p:x', models = ['m'] }", "gateway.peers.p.url", "is not a URL"),
        ("peers.p = { url = 'http://p?a=b', models = ['m'] }", "gateway.peers.p.url", "is not a URL"),
        (
            "peers.p = { proxy = 'http://p', models = ['m'] }",
            "gateway.peers.p.proxy",
            "unknown key 'proxy'; there are url",
        ),
        ("peers.p = { url = 'http://p', models = ['m'], api_key = 3 }", "gateway.peers.p.api_key", "must be a string"),
        (
            "peers.p = { url = 'http://p', models = ['m'], api_key_env = 'N' }",
            "gateway.peers.p.api_key_env",
            "is not set",
        ),
        ("peers.p = 'http://p'", "gateway.peers.p", "must be a table"),
    ],
)
def test_a_wrong_key_of_the_gateway_is_told(lines: str, where: str, what: str) -> None:
    found = dict(errors(f"[gateway]\n{lines}\n{MODELS}"))
    assert what in found[where], found


def test_a_key_that_is_wrong_says_nothing_of_its_secret() -> None:
    where, what = one_error("[gateway]\napi_keys = ['sk-secret', { key = 'sk-secret' }]\n" + MODELS)
    assert "secret" not in where + what


def test_every_mistake_of_a_file_is_told_at_once() -> None:
    text = """
    [gateway]
    schedular = "fifo"
    preload = ["c"]
    [gateway.macros]
    port = "${nope}"
    [gateway.groups.g]
    members = ["a", "nobody"]
    [models.a]
    cmd = "s ${port} ${env.NOPE} ${PID}"
    ttl = "soon"
    env = { A = true, B = "${MISSING}" }
    [models.b]
    vram = "lots"
    aliases = ["a"]
    """
    assert [where for where, _ in errors(text)] == [
        "gateway.macros.port",
        "gateway.schedular",
        "models.a.cmd",
        "models.a.cmd",
        "models.a.env.B",
        "models.a.ttl",
        "models.b.vram",
        "models.b",
        "models.b.aliases[0]",
        "gateway.groups.g.members[1]",
        "gateway.preload[0]",
    ]


def test_a_model_that_is_wrong_is_still_one_that_others_may_name() -> None:
    text = "[gateway]\npreload = ['x']\n[models.a]\naliases = ['x']\ncmd = 's'\nttl = 'soon'\n"
    assert one_error(text)[0] == "models.a.ttl"


@pytest.mark.parametrize("keys", [MODEL_KEYS, GATEWAY_KEYS])
@pytest.mark.parametrize("value", ["-3", "'${'", "[[]]", "[{}]", "{ a = [{}] }", "1979-05-27", "nan", "true", "''"])
def test_no_value_of_any_key_is_more_than_a_mistake(keys: dict[str, object], value: str) -> None:
    place = "models.m" if keys is MODEL_KEYS else "gateway"
    for key in keys:
        with contextlib.suppress(BadInput):
            settings(f"[{place}]\n{key} = {value}\n")


def test_the_hubs_file_names_itself_and_all_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "ostler.toml"
    path.write_text("[models.m]\ncmd = 's'\nttl = 'soon'\nvram = 'x'\n[models.'n.5']\naliases = ['a', 3]\ncmd = 's'\n")
    with pytest.raises(BadInput) as error:
        hub_settings.load(path)
    lines = str(error.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [f"{path}:3", "models.m.ttl"],
        [f"{path}:4", "models.m.vram"],
        [f"{path}:6", 'models."n.5".aliases[1]'],
    ]
    path.write_text("[models]\nm = 3\n")
    with pytest.raises(BadInput, match=r"ostler.toml:2: models.m: must be a table, not 3"):
        hub_settings.load(path)


def test_the_hubs_file_knows_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER", "/opt/server")
    path = tmp_path / "ostler.toml"
    path.write_text("[quotas]\nrunning_gpus = 1\n[gateway]\nscheduler = 'fifo'\n[models.m]\ncmd = '${env.SERVER}'\n")
    found = hub_settings.load(path)
    assert (found.gateway.models["m"].command, found.gateway.scheduler) == (["/opt/server"], "fifo")
    assert found.quotas.default.running_gpus == 1
