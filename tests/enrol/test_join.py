"""`ostler join` and `ostler leave` as they are typed, against a real hub, where no keeper of services answers."""

import itertools
import json
import os
import shlex
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.process_fleet import OSTLER, ProcessFleet, process_fleet, until

from ostler import __version__
from ostler.client.http import Hub

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("hub")) as fleet:
        yield fleet


_NUMBERS = itertools.count(1)


class Machine:
    """Another machine: a home and a state folder of its own, and no systemd that would answer."""

    def __init__(self, folder: Path, fleet: ProcessFleet) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.fleet = fleet
        self.name = f"box-{next(_NUMBERS)}"
        self.environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "XDG_", "COLUMNS"))
            },
            "HOME": str(folder),
            "OSTLER_STATE_DIR": str(self.state),
            "XDG_RUNTIME_DIR": str(folder / "nothing"),
        }

    def ostler(self, *arguments: str, **environment: str) -> Done:
        return subprocess.run(
            [*OSTLER, *arguments], capture_output=True, text=True, timeout=100, env=self.environment | environment
        )

    def join(self, token: str, *more: str, url: str = "", **environment: str) -> Done:
        return self.ostler("join", url or self.fleet.url, token, "--user", "--name", self.name, *more, **environment)

    @property
    def token_file(self) -> Path:
        return self.state / "workers" / self.name / "enrolled.token"

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def machine(tmp_path: Path, fleet: ProcessFleet) -> Machine:
    return Machine(tmp_path, fleet)


def operator(fleet: ProcessFleet) -> Hub:
    return Hub(fleet.url, (fleet.state / "admin.token").read_text().strip())


def new_token(fleet: ProcessFleet, role: str = "join-once") -> str:
    with operator(fleet) as hub:
        return str(hub.create_token(role)["token"])


def tokens_of(machine: Machine) -> list[str]:
    """The ids of those that serve this machine."""
    with operator(machine.fleet) as hub:
        return [token["id"] for token in hub.tokens() if token["user"] == machine.name and not token["revoked_at"]]


# Joining


def test_a_machine_joins_and_the_printed_command_is_a_worker_of_that_hub(machine: Machine, fleet: ProcessFleet) -> None:
    token = new_token(fleet)
    done = machine.join(token, "--label", "zone=the attic", "--slots", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in a container there is none" in done.stderr
    for what in ("hub", "clock", "token", "machine", "disk", "process", "enrolled"):
        assert any(line.split()[:2] == ["ok", what] for line in done.stdout.splitlines()), (what, done.stdout)
    assert __version__ in done.stdout
    command = shlex.split(done.stdout.splitlines()[-1])
    with open(machine.folder / "worker.log", "wb") as log:
        worker = subprocess.Popen(command, env=machine.environment, stderr=log)
    try:
        until(lambda: machine.name in fleet.workers(), "the worker has registered", process=worker)
        [found] = [one for one in fleet.json("workers")["workers"] if one["id"] == machine.name]
        assert (found["labels"]["zone"], found["status"]) == ("the attic", "ready")
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0


def test_no_secret_is_shown_and_the_own_token_is_its_users_alone(machine: Machine, fleet: ProcessFleet) -> None:
    given = new_token(fleet)
    done = machine.join(given)
    own = machine.token_file.read_text().strip()
    assert own and own != given
    assert stat.S_IMODE(machine.token_file.stat().st_mode) == 0o600
    for secret in (given, own):
        assert secret not in done.stdout + done.stderr
    assert f"@{machine.token_file}" in done.stdout
    for path in machine.folder.rglob("*"):
        if path.is_file() and path != machine.token_file:
            assert own.encode() not in path.read_bytes(), path


def test_a_second_join_is_an_update_that_spends_nothing(machine: Machine, fleet: ProcessFleet) -> None:
    token = new_token(fleet)
    assert machine.join(token).returncode == 0
    own = machine.token_file.read_text()
    unspent = new_token(fleet)
    for given in (token, unspent):
        again = machine.join(given, "--slots", "1")
        assert again.returncode == 0, again.stdout + again.stderr
        assert "enrolled already" in again.stderr and "--slots 1" in again.stdout
    assert machine.token_file.read_text() == own
    assert len(tokens_of(machine)) == 1
    assert machine.ostler("leave").returncode == 0
    assert machine.join(unspent).returncode == 0


def test_a_machine_whose_own_token_was_revoked_needs_another(machine: Machine, fleet: ProcessFleet) -> None:
    token = new_token(fleet)
    assert machine.join(token).returncode == 0
    [own] = tokens_of(machine)
    with operator(fleet) as hub:
        hub.revoke_token(own)
    refused = machine.join(token)
    assert refused.returncode == 1 and "has been used" in refused.stdout
    assert machine.join(new_token(fleet)).returncode == 0


def test_a_machine_does_not_change_hubs_by_mistake(machine: Machine, fleet: ProcessFleet) -> None:
    assert machine.join(new_token(fleet)).returncode == 0
    refused = machine.join("x", url="http://127.0.0.1:9")
    assert refused.returncode == 2
    assert fleet.url in refused.stderr and f"ostler leave --name {machine.name}" in refused.stderr


@pytest.mark.parametrize("name", ["../x", "worker"])
def test_a_bad_name_is_refused_before_anything_else(machine: Machine, name: str) -> None:
    done = machine.ostler("join", "http://127.0.0.1:9", "token", "--user", "--name", name)
    assert done.returncode == 2 and "name" in done.stderr
    assert not machine.state.exists()


# What must hold before


def failed_checks(done: Done) -> list[str]:
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("failed")]


def nothing_happened(machine: Machine, done: Done) -> bool:
    assert "nothing was registered" in done.stderr
    return done.returncode == 1 and machine.files() == [] and not tokens_of(machine)


def test_a_hub_that_does_not_answer_stops_the_joining(machine: Machine) -> None:
    done = machine.join("token", url=f"http://127.0.0.1:{free_port()}")
    assert failed_checks(done) == ["hub"]
    assert nothing_happened(machine, done)


@pytest.mark.parametrize(("role", "said"), [("operator", "role operator"), ("", "ostler token create --join")])
def test_a_token_that_lets_no_machine_in_stops_the_joining(
    machine: Machine, fleet: ProcessFleet, role: str, said: str
) -> None:
    done = machine.join(new_token(fleet, role) if role else "nonsense")
    assert failed_checks(done) == ["token"] and said in done.stdout
    assert nothing_happened(machine, done)


def test_a_folder_in_which_nothing_can_run_stops_the_joining_and_the_token_stays_good(
    machine: Machine, fleet: ProcessFleet
) -> None:
    token = new_token(fleet)
    (machine.folder / "file").write_text("no folder\n")
    done = machine.join(token, "--state-dir", str(machine.folder / "file" / "state"))
    assert done.returncode == 1 and failed_checks(done) == ["process"]
    assert machine.join(token).returncode == 0


class HubWithAnotherClock(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"status": "ok", "version": "0.0.1"}).encode()
        self.send_response_only(200)
        self.send_header("Date", "Thu, 01 Jan 2015 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def test_a_clock_that_differs_by_more_than_a_minute_stops_the_joining(machine: Machine) -> None:
    with HTTPServer(("127.0.0.1", 0), HubWithAnotherClock) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = machine.join("token", url=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "clock" in failed_checks(done) and "ahead of the hub's" in done.stdout
    assert nothing_happened(machine, done)


# Without doing it


def test_a_dry_run_prints_the_unit_and_changes_nothing(machine: Machine) -> None:
    done = machine.join("token", "--dry-run", "--label", "share=100%", url="http://hub.example:7600")
    assert done.returncode == 0, done.stderr
    assert "[Service]" in done.stdout and '"share=100%%"' in done.stdout
    assert str(machine.folder / f".config/systemd/user/ostler-worker-{machine.name}.service") in done.stderr
    assert machine.files() == [] and not machine.state.exists()


def test_the_unit_of_a_hub_holds_what_was_typed_in_full(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "own.toml").touch()
    open_to_all = ("--host", "0.0.0.0", "--tls", "auto")
    done = subprocess.run(
        [*OSTLER, "hub", "--install", "--dry-run", "--port", "7611", *open_to_all, "--config", "own.toml"],
        cwd=tmp_path,
        env=machine.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.removeprefix("ExecStart="))
    options = dict(zip(words[5::2], words[6::2], strict=True))
    assert options == {
        "--host": "0.0.0.0",
        "--tls": "auto",
        "--port": "7611",
        "--config": str(tmp_path / "own.toml"),
        "--state-dir": str(machine.state),
    }
    assert not machine.state.exists()


def test_a_worker_that_asks_over_http_is_told_so_and_takes_no_labels(machine: Machine) -> None:
    done = machine.join("token", "--pull", "--dry-run", url="http://hub.example:7600")
    assert '"ostler.pull"' in done.stdout and "KillMode=mixed" in done.stdout
    refused = machine.join("token", "--pull", "--dry-run", "--label", "a=b")
    assert refused.returncode == 2 and "--label" in refused.stderr


# Leaving


def test_a_machine_leaves_and_its_token_is_worth_nothing(machine: Machine, fleet: ProcessFleet) -> None:
    machine.join(new_token(fleet))
    own = machine.token_file.read_text().strip()
    done = machine.ostler("leave")
    assert done.returncode == 0, done.stderr
    assert f"{machine.name} has left" in done.stdout
    assert not machine.token_file.exists()
    assert tokens_of(machine) == []
    assert machine.ostler("workers", "--hub", fleet.url, "--token", own).returncode == 4
    assert machine.ostler("leave").returncode == 5


def test_a_machine_leaves_a_hub_that_is_away(tmp_path: Path) -> None:
    fleet = ProcessFleet(tmp_path / "hub")
    fleet.folder.mkdir()
    fleet.start_hub()
    machine = Machine(tmp_path / "machine", fleet)
    machine.folder.mkdir()
    assert machine.join(new_token(fleet)).returncode == 0
    fleet.close()
    done = machine.ostler("leave")
    assert done.returncode == 0, done.stderr
    assert "no hub answers" in done.stderr and "ostler token revoke" in done.stderr
    assert not machine.token_file.exists()


def test_where_several_have_joined_one_must_be_named(machine: Machine, fleet: ProcessFleet) -> None:
    for name in ("one", "two"):
        done = machine.ostler("join", fleet.url, new_token(fleet), "--user", "--name", name)
        assert done.returncode == 0, done.stderr
    refused = machine.ostler("leave")
    assert refused.returncode == 2 and "one, two" in refused.stderr
    assert machine.ostler("leave", "--name", "one").returncode == 0
    assert machine.ostler("leave").returncode == 0
    assert machine.ostler("leave", "--name", "one").returncode == 5


# The tokens' own command


def test_a_join_token_says_how_long_it_is_good_and_what_to_do_with_it(fleet: ProcessFleet) -> None:
    made = fleet.run("token", "create", "--join", "--expires", "90m")
    assert made.returncode == 0
    assert f"only its own machine can join: ostler join http://127.0.0.1:{fleet.port} TOKEN" in made.stderr
    assert "for other machines start it with: ostler up --host 0.0.0.0 --tls auto" in made.stderr
    assert "good until" in made.stderr
    document = fleet.json("token", "create", "--join")
    assert document["role"] == "join-once" and document["expires_at"]


@pytest.mark.parametrize(
    "arguments", [[], ["--join", "--role", "user"], ["--join", "--expires", "soon"], ["--join", "--expires", "0s"]]
)
def test_a_wish_for_a_token_that_makes_no_sense_is_wrong_usage(fleet: ProcessFleet, arguments: list[str]) -> None:
    assert fleet.run("token", "create", *arguments).returncode == 2


def test_the_list_of_tokens_says_when_each_ends(fleet: ProcessFleet) -> None:
    made = fleet.json("token", "create", "--join", "--expires", "90m")
    [line] = [line for line in fleet.run("token", "list").stdout.splitlines() if line.startswith(made["id"])]
    assert line.split()[1] == "join-once" and " in 1h" in line
