"""A wrong manifest is refused as a whole, in words that lead to the place."""

import pytest
from tests.manifest.samples import EXAMPLE, errors_of

from ostler.domain.errors import BadInput, TooLarge, Unreadable
from ostler.manifest import read


def test_all_errors_are_told_at_once_each_with_file_line_and_key() -> None:
    text = """\
[hosts.pi]
alow_jobs = ["gbt"]
capability = { cores = 2 }

[defaults]
command = ["train", "{modle}"]
max_atempts = 3

[[jobs]]
model = "gbt"
prioritty = 10

[[jobs]]
model = "mlp"
hyper.layers = [
  64, nan,
  inf ]

[[sweep]]
name = "s"
"""
    with pytest.raises(BadInput) as caught:
        read(text, "fleet/manifest.toml")
    assert caught.value.status == 422
    assert caught.value.errors == [
        ("fleet/manifest.toml:2: hosts.pi.alow_jobs", "unknown key 'alow_jobs'; did you mean 'allow_jobs'?"),
        ("fleet/manifest.toml:3: hosts.pi.capability.cores", "unknown key 'cores'; did you mean 'cpu_cores'?"),
        (
            "fleet/manifest.toml:6: defaults.command[1]",
            "unknown name 'modle' in braces for jobs[0]; did you mean 'model'?",
        ),
        ("fleet/manifest.toml:7: defaults.max_atempts", "unknown key 'max_atempts'; did you mean 'max_attempts'?"),
        ("fleet/manifest.toml:11: jobs[0].prioritty", "unknown key 'prioritty'; did you mean 'priority'?"),
        ("fleet/manifest.toml:16: jobs[1].hyper.layers[1]", "must be a finite number, not nan"),
        ("fleet/manifest.toml:17: jobs[1].hyper.layers[2]", "must be a finite number, not inf"),
        ("fleet/manifest.toml:19: sweep", "unknown key 'sweep'; did you mean 'sweeps'?"),
    ]
    assert str(caught.value).splitlines() == [f"{where}: {what}" for where, what in caught.value.errors]


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("prioritty", "did you mean 'priority'?"),
        ("Priority", "did you mean 'priority'?"),
        ("modle", "did you mean 'model'?"),
        ("min_vram_gb", "did you mean 'min_vram_gib'?"),
        ("max_runtime", "did you mean 'max_runtime_hours'?"),
        ("hypers", "did you mean 'hyper'?"),
        ("prefer-cuda", "did you mean 'prefer_cuda'?"),
        ("xyzzy", "the nearest valid key is '"),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_valid_one(key: str, near: str) -> None:
    ((where, what),) = errors_of(f'[[jobs]]\nname = "n"\ncommand = ["c"]\n{key} = 1')
    assert where == f"manifest.toml:4: jobs[0].{key}"
    assert what.startswith(f"unknown key {key!r}; {near}")


@pytest.mark.parametrize("entry", ["[defaults]", '[[jobs]]\ncommand = ["c"]\nmodel = "m"'])
def test_what_belongs_into_a_sweep_is_sent_there(entry: str) -> None:
    ((where, what),) = errors_of(f"{entry}\ngrid = {{ a = [1] }}")
    assert where.endswith(".grid")
    assert what == "'grid' is a key of [[sweeps]]; move this entry there"


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("name = 1", "name", "must be a string, not 1"),
        ('name = "\\u0000"', "name", "must not contain NUL characters"),
        (f'name = "{"x" * 257}"', "name", "must have at most 256 characters"),
        ("model = true", "model", "must be a string, not true"),
        ("mode = []", "mode", "must be a string, not a list"),
        ('priority = "high"', "priority", "must be a whole number, not 'high'"),
        ("priority = true", "priority", "must be a whole number, not true"),
        ("priority = 1.5", "priority", "must be a whole number, not 1.5"),
        ("priority = 1000001", "priority", "must be between -1000000 and 1000000, not 1000001"),
        ("priority = inf", "priority", "must be a whole number, not inf"),
        ("require_cuda = 1", "require_cuda", "must be true or false, not 1"),
        ('prefer_cuda = "yes"', "prefer_cuda", "must be true or false, not 'yes'"),
        ("prefer_cuda_grace_s = -1", "prefer_cuda_grace_s", "must be between 0 and"),
        ("min_vram_gib = -0.5", "min_vram_gib", "must be between 0 and"),
        ("min_ram_gib = nan", "min_ram_gib", "must be between 0 and"),
        ("min_ram_gib = true", "min_ram_gib", "must be a number, not true"),
        ('min_cores = "2"', "min_cores", "must be a number, not '2'"),
        ('allowed_hosts = "a"', "allowed_hosts", "must be a list of strings, not 'a'"),
        ('denied_hosts = ["a", 1]', "denied_hosts[1]", "must be a string, not 1"),
        ('train_hosts = [""]', "train_hosts[0]", "must not be empty"),
        ("split_recipe = 2020-01-01", "split_recipe", "must be a string, not a date or a time"),
        ("seed = 9007199254740992", "seed", "must be between -9007199254740991 and 9007199254740991"),
        (f"seed = 0x{'f' * 900}", "seed", "must be between"),
        ("n_resamples = -1", "n_resamples", "must be between 0 and 1000000000, not -1"),
        ("hyper = 1", "hyper", "must be a table, not 1"),
        ("hyper.a = inf", "hyper.a", "must be a finite number, not inf"),
        ("hyper.a = 9007199254740992", "hyper.a", "must be within ±(2^53 - 1)"),
        ("hyper.a = 07:30:00", "hyper.a", "put dates in quotes"),
        ("hyper.a = [1, { b = nan }]", "hyper.a[1].b", "must be a finite number"),
        ('hyper."" = 1', 'hyper.""', "a key must be non-empty"),
        ('command = "train it"', "command", "must be a list of strings, not 'train it'"),
        ("command = []", "command", "must name a program"),
        ('command = ["a", 1]', "command[1]", "must be a string, not 1"),
        ("env = { A = 1 }", "env.A", 'must be a string: write "1"'),
        ("env = { A = true }", "env.A", "must be a string, not true"),
        ('env = { "A=B" = "" }', 'env."A=B"', "without '=' or NUL"),
        ("env = []", "env", "must be a table of strings, not a list"),
        ("max_runtime_hours = 1e13", "max_runtime_hours", "must be between 0 and"),
        ("max_attempts = 1.5", "max_attempts", "must be a whole number, not 1.5"),
        ("max_retries = -1", "max_retries", "must be between 0 and"),
        ("preemptible = 0", "preemptible", "must be true or false, not 0"),
        ('labels = ["zone"]', "labels", "'zone' is not 'label op value'"),
        ("metric = 1", "metric", "must be a string, not 1"),
        ('metric = "m"\ngoal = "up"', "goal", "must be 'min' or 'max', not 'up'"),
        ('goal = "min"', "goal", "says nothing without a metric"),
    ],
)
def test_a_wrong_value_is_told_with_its_key(text: str, key: str, what: str) -> None:
    command = "" if text.startswith("command") else 'command = ["c"]\n'
    name = "" if text.startswith("name") else 'name = "n"\n'
    ((where, told),) = errors_of(f"[[jobs]]\n{name}{command}{text}")
    line = 2 + bool(name) + bool(command) + text.count("\n")
    assert where == f"manifest.toml:{line}: jobs[0].{key}"
    assert what in told


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('[[jobs]]\nmodel = "m"', "manifest.toml:1: jobs[0]", "needs a command, here or in [defaults]"),
        ('\n[[jobs]]\ncommand = ["c"]', "manifest.toml:2: jobs[0]", "needs a name or a model"),
        ('[jobs]\nmodel = "m"', "manifest.toml:1: jobs", "must be an array of tables (double brackets"),
        ("jobs = [1]", "manifest.toml:1: jobs[0]", "must be a table, not 1"),
        ("defaults = 1", "manifest.toml:1: defaults", "must be a table, not 1"),
        ("hosts = []", "manifest.toml:1: hosts", "must be a table, not a list"),
        ("[hosts]\npi = 1", "manifest.toml:2: hosts.pi", "must be a table, not 1"),
        ("[hosts.pi]\nallow_jobs = [1]", "manifest.toml:2: hosts.pi.allow_jobs[0]", "must be a string, not 1"),
        ("[hosts.pi]\ncapability = 2", "manifest.toml:2: hosts.pi.capability", "must be a table, not 2"),
        (
            "[hosts.pi.capability]\ngpu_count = 1.5",
            "manifest.toml:2: hosts.pi.capability.gpu_count",
            "must be a whole number",
        ),
        (
            "[hosts.pi.capability]\nram_gib = -1",
            "manifest.toml:2: hosts.pi.capability.ram_gib",
            "must be between 0 and",
        ),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(text: str, where: str, what: str) -> None:
    ((found, told),) = errors_of(text)
    assert found == where
    assert what in told


def test_two_entries_of_one_job_are_told_with_both_lines_and_what_must_differ() -> None:
    text = 'defaults.command = ["c"]\n[[jobs]]\nmodel = "m"\nhyper = { a = 1 }\n\n[[jobs]]\nname = "other"\nmodel = "m"\nhyper.a = 1.0'
    assert errors_of(text) == [
        (
            "manifest.toml:6: jobs[1]",
            "is the same job as jobs[0] (line 2); "
            "one of model, mode, hyper, split_recipe, train_hosts, seed must differ",
        )
    ]


def test_two_entries_without_a_model_that_share_a_name_are_one_job() -> None:
    text = 'defaults.command = ["c"]\n[[jobs]]\nname = "eval"\nhyper.a = 1\n\n[[jobs]]\nname = "eval"\nhyper.a = 2'
    assert errors_of(text) == [
        (
            "manifest.toml:6: jobs[1]",
            "is the same job as jobs[0] (line 2); "
            "without a model the name identifies a job: change the name, or add a model",
        )
    ]


def test_a_sweep_that_holds_a_job_again_is_told_once() -> None:
    sweep = 'name = "s{a}"\ngrid = { a = [1, 2, 3] }\n'
    text = f'defaults.command = ["c"]\n[[jobs]]\nname = "s2"\n[[sweeps]]\n{sweep}[[sweeps]]\n{sweep}'
    assert [where for where, _ in errors_of(text)] == [
        "manifest.toml:4: sweeps[0]",
        "manifest.toml:7: sweeps[1]",
        "manifest.toml:7: sweeps[1]",
    ]


def test_a_wrong_value_does_not_cause_errors_elsewhere() -> None:
    text = EXAMPLE.replace('command = ["python"', 'command = [1, "python"').replace('model = "gbt"', "model = 5")
    assert [where for where, _ in errors_of(text)] == [
        "manifest.toml:7: defaults.command[0]",
        "manifest.toml:11: jobs[0].model",
    ]


def test_a_misspelt_key_does_not_also_count_as_missing() -> None:
    assert [what for _, what in errors_of('[[jobs]]\nmodell = "m"\ncomand = ["c"]')] == [
        "unknown key 'modell'; did you mean 'model'?",
        "unknown key 'comand'; did you mean 'command'?",
    ]


def test_a_wrong_default_is_told_once_and_not_for_every_job() -> None:
    jobs = "".join(f'[[jobs]]\nmodel = "m{index}"\n' for index in range(50))
    text = f'[defaults]\ncommand = ["c"]\nlabels = ["zone"]\npriority = 1.5\n{jobs}'
    assert [where for where, _ in errors_of(text)] == [
        "manifest.toml:3: defaults.labels",
        "manifest.toml:4: defaults.priority",
    ]


def test_no_more_than_twenty_errors_are_told() -> None:
    with pytest.raises(BadInput) as caught:
        read("".join(f"wrong{index} = {index}\n" for index in range(1000)))
    assert len(caught.value.errors) == 20
    assert str(caught.value).splitlines()[-1] == "these are the first 20 errors; there may be more"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a = 1\nb = = 2\n", "manifest.toml:2"),
        ("a = 1\na = 2\nb = 3", "manifest.toml:2"),
        ("[hosts.pi]\n[hosts.pi]\n", "manifest.toml:2"),
        ("[[jobs]]\nmodel = 'a'\n[jobs]\n", "manifest.toml:3"),
        ('a = """\n\n', "manifest.toml:3"),
        ("a = 1\r\nb = \r\n", "manifest.toml:2"),
        ("a = 2020-13-45", "manifest.toml:1"),
        ("a = '\0'", "manifest.toml:1"),
        (b"a = 1\nb = '\xff'", "manifest.toml:2"),
        ("a = 1\nb = '\ud800'", "manifest.toml:2"),
        ("a = 1\nb = " + "9" * 5000, "manifest.toml:2"),
        ("a = 1\nb = " + "[" * 5000, "manifest.toml:2"),
        ("a = 1\nb = " + "{a=" * 5000, "manifest.toml:2"),
        ("a = 1\n" + "b." * 5000 + "c = 1", "manifest.toml:2"),
        ("a = 1\n[" + "b." * 5000 + "c]", "manifest.toml:2"),
    ],
)
def test_what_is_not_toml_is_unreadable_and_the_line_is_told(text: str | bytes, where: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(text)
    assert caught.value.status == 400
    assert str(caught.value).startswith(f"{where}: cannot be read as TOML: ")
    assert [place for place, _ in caught.value.errors] == [where]


def test_a_manifest_of_more_than_four_mebibytes_is_not_looked_at() -> None:
    with pytest.raises(TooLarge, match="a manifest may have 4194304"):
        read("#" * (4 * 1024 * 1024 + 1))
    assert read("#" * (4 * 1024 * 1024)).specs == []


def test_an_error_stays_short_whatever_the_key_and_the_value() -> None:
    long = "k" * 100_000
    for text in (f"{long} = 1", f'"{long}é" = 1', f'[[jobs]]\nname = "n"\nseed = "{long}"', f"hosts.{long} = 1"):
        assert all(len(where) + len(what) < 400 for where, what in errors_of(text))


def test_names_of_a_wrong_type_do_not_make_two_jobs_the_same() -> None:
    found = errors_of('[defaults]\ncommand = ["c"]\nmode = "m"\n[[jobs]]\nname = 5\n[[jobs]]\nname = 6\n')
    assert [what for _, what in found] == ["must be a string, not 5", "must be a string, not 6"]
