"""What every command line gets back before a hub is met: help, complaints, exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest

from ostler import __version__
from ostler.cli.exits import sentence_of
from ostler.cli.main import run
from ostler.domain.errors import BadInput, NotAuthenticated

COMMANDS = (
    "up hub worker submit run wait cancel requeue apply plan reload jobs show why whatif logs status sweeps workers token config"
).split()


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A state folder of its own, and a hub address where nobody listens."""
    for name in ("OSTLER_TOKEN", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OSTLER_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("OSTLER_HUB", "http://127.0.0.1:9")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["submit", "--help"], ["jobs", "-h"]])
def test_what_needs_no_hub_loads_none_of_it(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom ostler.cli.main import run\n"
        f"code = run({arguments!r})\n"
        "heavy = 'ostler.hub ostler.worker ostler.client ostler.core ostler.runtime ostler.ledger aiohttp uvicorn "
        "starlette urllib3 asyncio rich apsw psutil websockets'.split()\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == "[]\n"
    assert done.stdout


def test_the_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"ostler {__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    listed = {
        line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ") and line.strip()
    }
    assert set(COMMANDS) <= listed


def test_no_sentence_of_a_list_of_commands_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "..." not in capsys.readouterr().out.split("Start:")[1]


def test_the_list_of_errors_has_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    assert all("  " in line for line in capsys.readouterr().out.splitlines())


def test_the_beginning_of_an_errors_name_leads_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "quota"]) == 5
    assert "did you mean 'quota-exceeded'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"Usage: ostler {command}" in capsys.readouterr().out


def test_no_arguments_print_the_help_as_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert "Usage: ostler" in out.err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("jbos", "no such command 'jbos'. Did you mean 'jobs'?"),
        ("submit --gpu 1 -- x", "--gpus"),
        ("submit", "there is no command to run; put it after two dashes"),
        ("submit --memory 8q -- x", "--memory: '8q' is not a size; write it like '512m'"),
        ("submit --gpus two -- x", "invalid value for '--gpus'"),
        ("submit --follow --json -- x", "--follow"),
        ("run --array 3 -- x", "--array"),
        ("run --schedule-timeout soon -- x", "--schedule-timeout: 'soon' is not a duration"),
        ("show", "missing argument 'ID'; see: ostler show --help"),
        ("wait x --timeout never", "--timeout: 'never' is not a duration"),
        ("jobs --live --state failed", "--live"),
        ("jobs --hub nowhere", "'nowhere' is not an address; write it like http://"),
        ("worker --label zone", "--label: 'zone' is not a label; write it like zone=eu"),
        ("worker show", "missing argument"),
        ("hub --port 99999", "99999 is not in the range"),
        ("hub --log-level loud", "--log-level: 'loud' is not one of debug, info, warning, error"),
        ("token create", "say what the token is for: --role"),
        ("apply", "missing argument 'FILE'; see: ostler apply --help"),
        ("apply nowhere.toml", "nowhere.toml cannot be read: No such file or directory"),
        ("plan /", "/ cannot be read: Is a directory"),
        ("sweeps show", "missing argument 'NAME'"),
    ],
)
def test_wrong_usage_is_told_in_one_line(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*line.split(), *(["--token", "t"] if line.startswith("worker --label") else [])]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("ostler: ")
    assert out.err.count("\n") == 1
    assert told in out.err


@pytest.mark.parametrize(
    "line",
    [
        "jobs",
        "jobs --json",
        "status",
        "workers",
        "why x",
        "whatif --gpus 1",
        "logs x",
        "cancel x y",
        "wait x",
        "--hub http://127.0.0.1:9 jobs",
        "jobs --token t",
        "apply /dev/null",
        "plan /dev/null",
        "reload",
        "sweeps",
        "sweeps show x",
        "sweeps cancel x --yes",
        "token list",
    ],
)
def test_no_hub_is_exit_code_3_and_says_how_to_start_one(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 3
    out = capsys.readouterr()
    assert out.out == "" or line == "cancel x y --json"
    told = [said for said in out.err.splitlines() if "--token @FILE" not in said]
    assert len(told) == 1 and told[0].startswith("ostler: no hub answers at http://127.0.0.1:9")
    assert "ostler up" in told[0]


def test_options_before_the_command_count_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--hub", "http://127.0.0.1:19", "jobs"]) == 3
    assert "127.0.0.1:19" in capsys.readouterr().err


def test_fields_that_the_hub_refuses_are_named_by_their_options() -> None:
    errors = [("node_count", "is not supported"), ("prolog", "is not supported"), ("command", "is empty")]
    joined = "; ".join(f"{where}: {what}" for where, what in errors)
    assert sentence_of(BadInput(joined, errors)) == (
        "--nodes (node_count): is not supported; prolog: is not supported; the command: is empty"
    )


def test_a_token_that_the_hub_does_not_know_is_told_with_where_to_give_another() -> None:
    told = sentence_of(NotAuthenticated("bring a valid token: `Authorization: Bearer TOKEN`"))
    assert "--token" in told
    assert "OSTLER_TOKEN" in told


def test_config_show_tells_where_each_value_came_from(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["config", "show", "--hub", "http://hub:1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["hub", "http://hub:1", "--hub"]
    assert lines[2].split() == ["state-dir", str(tmp_path), "$OSTLER_STATE_DIR"]
    assert lines[3].split()[:2] == ["token", "none"]


def test_config_show_never_prints_a_token(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_TOKEN", "secret")
    assert run(["config", "show", "--json"]) == 0
    out = capsys.readouterr().out
    assert '"set"' in out
    assert "secret" not in out


def test_check_says_what_an_offer_is_fit_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    offer = tmp_path / "offer.toml"
    offer.write_text(
        'gpu_backend = "nvidia"\ngpu_count = 2\ngpu_type = "A100"\nvram_gb = 160\ncpu_count = 16\nmemory_gb = 64\n'
    )
    assert run(["worker", "--check", "--offer", str(offer)]) == 0
    out = capsys.readouterr().out
    assert "2×A100, 160 GiB together" in out
    assert "tasks of up to 2 whole GPUs" in out


def test_check_fails_where_nothing_can_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    offer = tmp_path / "offer.toml"
    offer.write_text("cpu_count = 0\n")
    assert run(["worker", "--check", "--offer", str(offer)]) == 1
    assert "Nothing can run here" in capsys.readouterr().out
