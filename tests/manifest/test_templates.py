"""Names in braces."""

import pytest
from tests.manifest.samples import errors_of, job


def argument(text: str, rest: str = "") -> str:
    """What becomes of one argument of a command."""
    return job(f"model = 'm'\ntrain_hosts = ['b', 'a']\ncommand = ['train', '''{text}''']\n{rest}").command[1]


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{model}", "m"),
        ("--m={model}/{seed}", "--m=m/0"),
        ("{mode}", ""),
        ("{name}", "m"),
        ("{out}/model.bin", "$OSTLER_OUT/model.bin"),
        ("{train_hosts}", "a,b"),
        ("{lr}", "0.1"),
        ("{depth}", "6"),
        ("{whole}", "6"),
        ("{tiny}", "1e-08"),
        ("{on}", "true"),
        ("{layers}", "64,32"),
        ("{nested}", "[1,2],3"),
        ("{opt}", '{"name":"adam"}'),
        ("{learning-rate}", "0.5"),
        ("{require_cuda}", "false"),
        ("{max_attempts}", "3"),
        ("{{model}}", "{model}"),
        ("{{{model}}}", "{m}"),
        ("a}}b", "a}b"),
        ("a}b{", "a}b{"),
        ("{}", "{}"),
        ("{3}", "{3}"),
        ("{ model }", "{ model }"),
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": {"b": {}}}', '{"a": {"b": {}}}'),
        ('{"a": {lr}}', '{"a": 0.1}'),
        ('{"a": {"b": "{model}"}}', '{"a": {"b": "m"}}'),
        ("$OSTLER_CHECKPOINT/x", "$OSTLER_CHECKPOINT/x"),
    ],
)
def test_an_argument_is_filled_in(text: str, filled: str) -> None:
    hyper = """
        hyper = { lr = 0.1, depth = 6, whole = 6.0, tiny = 1e-8, on = true, layers = [64, 32], nested = [[1, 2], 3], \
        opt = { name = "adam" }, learning-rate = 0.5 }
    """
    assert argument(text, hyper) == filled


def test_all_of_hyper_becomes_options_in_the_order_of_the_file() -> None:
    spec = job(
        """
        model = "m"
        command = ["train", "{hyper...}", "--last"]
        [jobs.hyper]
        z = 6
        a = 0.10
        on = true
        off = false
        text = "two words"
        negative = -1
        list = [1, "a"]
        table = { b = 1.50, a = "é" }
        """
    )
    assert spec.command == [
        *("train", "--z", "6", "--a", "0.1", "--on", "--text", "two words", "--negative", "-1"),
        *("--list", '[1,"a"]', "--table", '{"b":1.5,"a":"é"}', "--last"),
    ]


def test_all_of_an_empty_hyper_is_nothing() -> None:
    assert job('model = "m"\ncommand = ["train", "{hyper...}"]').command == ["train"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{modle}", "unknown name 'modle' in braces; did you mean 'model'?"),
        ("{lrr}", "unknown name 'lrr' in braces; did you mean 'lr'?"),
        ("{Model}", "unknown name 'Model' in braces; did you mean 'model'?"),
        ("{hyper.lr}", "unknown name 'hyper.lr' in braces; did you mean 'hyper'?"),
        ("{hyper…}", "unknown name 'hyper…' in braces; did you mean 'hyper'?"),
        ("x{hyper...}", "'{hyper...}' must be an argument of its own, in a command"),
        ("{command}", "unknown name 'command' in braces; the nearest valid name is"),
        ("{grid}", "unknown name 'grid' in braces; the nearest valid name is"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_one(text: str, what: str) -> None:
    ((where, told),) = errors_of(
        f'[[jobs]]\nmodel = "m"\nhyper = {{ lr = 1 }}\ncommand = [\n  "train",\n  "{text}",\n]'
    )
    assert where == "manifest.toml:6: jobs[0].command[1]"
    assert told.startswith(what)


@pytest.mark.parametrize("name", ["{name}", "{command}", "{out}", "{hyper...}"])
def test_a_name_cannot_hold_itself_or_what_is_known_only_later(name: str) -> None:
    ((where, _),) = errors_of(f'[[jobs]]\nname = "{name}"\ncommand = ["c"]')
    assert where == "manifest.toml:2: jobs[0].name"


def test_a_wrong_name_in_the_defaults_is_told_once_with_the_first_job_it_fails_for() -> None:
    jobs = "".join(f'[[jobs]]\nmodel = "m{index}"\n' for index in range(30))
    assert errors_of(f'[defaults]\ncommand = ["train", "{{modle}}"]\n{jobs}') == [
        (
            "manifest.toml:2: defaults.command[1]",
            "unknown name 'modle' in braces for jobs[0]; did you mean 'model'?",
        )
    ]


def test_a_command_that_grows_without_end_is_refused() -> None:
    long = f'[[jobs]]\nmodel = "m"\nhyper = {{ long = "{"x" * 10_000}" }}\n'
    ((where, what),) = errors_of(f'{long}command = ["train", "{"{long}" * 100}"]')
    assert where == "manifest.toml:4: jobs[0].command[1]"
    assert "over 256 KiB" in what
    ((where, what),) = errors_of(f'{long}command = [{chr(34)}train", {(chr(34) + "{hyper...}" + chr(34) + ",") * 100}]')
    assert where == "manifest.toml:4: jobs[0].command"
    assert "over 256 KiB" in what
