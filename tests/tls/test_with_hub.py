"""A hub with TLS as it is typed, and everybody who talks to it: commands, the Python client, workers, services, models."""

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.process_fleet import OSTLER, ProcessFleet, until
from tests.pull.bare import PullWorker
from tests.tls.papers import context_for, identity
from tests.tls.test_trust import listening

import ostler
from ostler.domain.joining import invitation, read_invitation

Done = subprocess.CompletedProcess[str]
MODEL = Path(__file__).with_name("model_server.py")
SETTINGS = f"""
[models.tiny]
cmd = ["{sys.executable}", "-S", "{MODEL}", "${{PORT}}"]
"""


class TlsFleet(ProcessFleet):
    """A hub that listens everywhere, and this machine's folder of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"https://127.0.0.1:{self.port}"
        self.gateway_port = free_port()
        self.environment["OSTLER_HUB"] = self.url
        self.hub_options = ("--host", "0.0.0.0", "--tls", "auto", "--gateway-port", str(self.gateway_port))
        self.said = folder / "hub.log"
        self.state.mkdir(mode=0o700)
        (self.state / "ostler.toml").write_text(SETTINGS)

    @property
    def fingerprint(self) -> str:
        return read_invitation(self.invitation())[0]

    def invitation(self, *more: str) -> str:
        return str(self.json("token", "create", "--join", *more)["token"])

    def fetch(self, path: str, port: int = 0, **body: Any) -> bytes:
        """As any program would that knows the hub's authority."""
        data = json.dumps(body).encode() if body else None
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"https://127.0.0.1:{port or self.port}{path}", data, headers)
        with urllib.request.urlopen(asked, timeout=60, context=context_for(self.state)) as answer:
            found: bytes = answer.read()
        return found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsFleet]:
    found = TlsFleet(tmp_path_factory.mktemp("tls"))
    try:
        found.start_hub()
        yield found
    finally:
        found.close()


class Elsewhere:
    """Another machine: nothing of the hub's is in its folders."""

    def __init__(self, folder: Path, fleet: TlsFleet) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.fleet = fleet
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "XDG_"))}
        self.environment = kept | {
            "HOME": str(folder),
            "OSTLER_STATE_DIR": str(self.state),
            "XDG_RUNTIME_DIR": str(folder / "nothing"),
            "NO_COLOR": "1",
        }

    def ostler(self, *arguments: str, **environment: str) -> Done:
        return subprocess.run(
            [*OSTLER, *arguments], capture_output=True, text=True, timeout=100, env=self.environment | environment
        )

    def join(self, token: str, *more: str, url: str = "") -> Done:
        return self.ostler("join", url or self.fleet.url, token, "--user", "--name", "far", *more)

    @property
    def kept(self) -> Path:
        return self.state / "workers" / "far"

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


@pytest.fixture
def elsewhere(tmp_path: Path, fleet: TlsFleet) -> Elsewhere:
    return Elsewhere(tmp_path, fleet)


# Who it is


def test_a_hub_says_what_it_opens_and_by_what_it_is_known(fleet: TlsFleet) -> None:
    said = fleet.said.read_text()
    assert f"every address of this machine, port {fleet.port}" in said and str(fleet.gateway_port) in said
    assert f"sha256:{fleet.fingerprint}" in said
    assert (fleet.state / "hub.url").read_text().strip() == fleet.url, "as this machine reaches it"


def test_on_its_own_machine_a_hub_is_known_without_being_told(fleet: TlsFleet) -> None:
    assert fleet.run("workers").returncode == 0
    assert fleet.run("doctor").returncode == 0
    with ostler.connect(fleet.url, fleet.token, fleet.state) as client:
        assert client.hub.health()["status"] == "ok"


def test_by_its_name_and_its_addresses_too(fleet: TlsFleet) -> None:
    for name in ("localhost", socket.gethostname()):
        try:
            socket.create_connection((name, fleet.port), 5).close()
        except OSError:
            continue  # what this machine calls itself leads nowhere here
        with ostler.connect(f"https://{name}:{fleet.port}", fleet.token, fleet.state) as client:
            assert client.hub.health()["status"] == "ok"


def test_elsewhere_it_is_not_trusted_until_somebody_says_by_what_to_know_it(
    fleet: TlsFleet, elsewhere: Elsewhere
) -> None:
    known = {"OSTLER_HUB": fleet.url, "OSTLER_TOKEN": fleet.token}
    stranger = elsewhere.ostler("workers", **known)
    assert stranger.returncode == 3
    assert "is not trusted" in stranger.stderr and "--ca" in stranger.stderr
    pin = f"sha256:{fleet.fingerprint}"
    for told in ({"OSTLER_CA": pin}, {"OSTLER_CA": str(fleet.state / "ca.pem")}):
        done = elsewhere.ostler("workers", **known, **told)
        assert done.returncode == 0, done.stderr
    assert elsewhere.ostler("workers", "--ca", pin, **known).returncode == 0
    another = elsewhere.ostler("workers", "--ca", f"sha256:{'0' * 64}", **known)
    assert another.returncode == 3 and "another hub, or somebody in between" in another.stderr
    with ostler.connect(fleet.url, fleet.token, elsewhere.state, ca=pin) as client:
        assert client.hub.health()["status"] == "ok"


@pytest.mark.parametrize("command", [("hub",), ("up",), ("hub", "--install", "--dry-run")])
def test_other_machines_are_not_let_in_without_tls(tmp_path: Path, command: tuple[str, ...]) -> None:
    environment = {**os.environ, "OSTLER_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run(
        [*OSTLER, *command, "--host", "0.0.0.0", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert done.returncode == 2
    assert "--tls auto" in done.stderr and "--tls-cert" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_token_on_the_command_line_is_warned_of(fleet: TlsFleet) -> None:
    done = fleet.run("workers", "--token", fleet.token)
    assert done.returncode == 0 and "@FILE" in done.stderr
    quiet = fleet.run("workers", "--token", f"@{fleet.state / 'admin.token'}")
    assert quiet.returncode == 0 and quiet.stderr == ""


# Joining


def test_a_machine_that_meets_another_hub_tells_it_nothing(fleet: TlsFleet, elsewhere: Elsewhere) -> None:
    token = fleet.invitation()
    with listening(identity(elsewhere.folder / "theirs")) as other:
        done = elsewhere.join(token, url=f"https://127.0.0.1:{other.port}")
        assert done.returncode == 1
        assert "nothing was sent to it" in done.stdout
        assert other.connections and other.heard == b""
    assert not elsewhere.kept.exists()
    forged = invitation("0" * 64, read_invitation(token)[1])
    assert elsewhere.join(forged).returncode == 1
    plain = elsewhere.join(token, url=fleet.url.replace("https", "http"))
    assert plain.returncode == 2 and "https://" in plain.stderr
    assert elsewhere.join(token).returncode == 0, "nobody has spent it"


def test_a_machine_joins_by_the_fingerprint_in_its_token_and_works(fleet: TlsFleet, elsewhere: Elsewhere) -> None:
    token = fleet.invitation()
    done = elsewhere.join(token)
    assert done.returncode == 0, done.stdout + done.stderr
    secret = read_invitation(token)[1]
    for path in elsewhere.files():
        assert secret.encode() not in path.read_bytes(), path
    assert (elsewhere.kept / "hub-ca.pem").read_bytes() == (fleet.state / "ca.pem").read_bytes()
    assert stat.S_IMODE((elsewhere.kept / "enrolled.token").stat().st_mode) == 0o600
    command = shlex.split(done.stdout.splitlines()[-1])
    assert command[command.index("--ca") + 1] == str(elsewhere.kept / "hub-ca.pem")
    spent = elsewhere.ostler("join", fleet.url, token, "--user", "--name", "late")
    assert spent.returncode == 1 and "has been used" in spent.stdout
    with (elsewhere.folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen([*command, "--slots", "2"], env=elsewhere.environment, stderr=log)
    try:
        until(lambda: "far" in fleet.workers(), "the worker has registered", process=worker)
        _works(fleet)
        _gets_another_token(fleet, elsewhere)
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    _knows_its_new_token(fleet, elsewhere, command)


def _works(fleet: TlsFleet) -> None:
    """A command with its log and its artifact, a function that talks to the hub, a service, a model."""
    done = fleet.run("run", "--", "sh", "-c", "echo out > $OSTLER_OUT/file; echo said", timeout=60)
    assert done.returncode == 0 and "said" in done.stdout, done.stderr

    def from_within() -> str:
        import os as system

        import ostler as ours

        with ours.connect(token="nobody") as client:
            return str(client.hub.health()["status"]) + str(system.environ["OSTLER_HUB"].startswith("https:"))

    with ostler.connect(fleet.url, fleet.token, fleet.state) as client:
        assert client.submit(from_within).result(timeout=60) == "okTrue"
    served = [sys.executable, "-S", str(MODEL), "$OSTLER_PORT"]
    shell = " ".join(served)
    fleet.submit("--service", "--name", "web", "--", "sh", "-c", shell)
    assert b"over TLS" in fleet.fetch("/services/web/")
    said = fleet.fetch("/v1/chat/completions", fleet.gateway_port, model="tiny", messages=[])
    assert b"over TLS" in said
    assert b"over TLS" in fleet.fetch("/v1/models/chat", model="tiny", messages=[]), "the hub reaches its own gateway"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"https://127.0.0.1:{fleet.gateway_port}/v1/models", timeout=60)


def _gets_another_token(fleet: TlsFleet, elsewhere: Elsewhere) -> None:
    [known] = [one for one in fleet.json("token", "list")["tokens"] if one["user"] == "far"]
    done = fleet.run("token", "rotate", known["id"])
    assert done.returncode == 0, done.stdout + done.stderr
    new = (elsewhere.kept / "worker.token").read_text().split()[0]
    assert new not in done.stdout + done.stderr and new != (elsewhere.kept / "enrolled.token").read_text().strip()
    assert stat.S_IMODE((elsewhere.kept / "worker.token").stat().st_mode) == 0o600
    ids = {one["id"]: one["expires_at"] for one in fleet.json("token", "list")["tokens"] if one["user"] == "far"}
    assert len(ids) == 2 and ids[known["id"]] is not None, "the old one is on its way out"
    assert fleet.run("token", "revoke", known["id"]).returncode == 0
    assert fleet.run("run", "--", "echo", "still here", timeout=60).returncode == 0


def _knows_its_new_token(fleet: TlsFleet, elsewhere: Elsewhere, command: list[str]) -> None:
    with (elsewhere.folder / "again.log").open("wb") as log:
        worker = subprocess.Popen([*command, "--slots", "2"], env=elsewhere.environment, stderr=log)
    try:
        until(lambda: "far" in fleet.workers(), "the worker is back", process=worker)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    assert elsewhere.ostler("leave").returncode == 0
    assert not [one for one in fleet.json("token", "list")["tokens"] if one["user"] == "far"]
    assert not (elsewhere.kept / "worker.token").exists() and not (elsewhere.kept / "hub-ca.pem").exists()


def test_a_machine_that_only_asks_over_http_knows_the_hub_too(fleet: TlsFleet, tmp_path: Path) -> None:
    token = str(fleet.json("token", "create", "--role", "worker", "--user", "pi")["token"])
    stranger = PullWorker(tmp_path, fleet.url, "--once", token=token)
    code, said = stranger.end()
    assert code == 3 and "CERTIFICATE_VERIFY_FAILED" in said
    known = PullWorker(tmp_path, fleet.url, "--once", "--ca", str(fleet.state / "ca.pem"), token=token)
    code, said = known.end()
    assert code == 5, said


def test_the_operators_file_is_replaced_and_commands_here_go_on(fleet: TlsFleet) -> None:
    old = fleet.token
    assert fleet.run("token", "rotate", "admin").returncode == 0
    fleet.token = (fleet.state / "admin.token").read_text().strip()
    assert fleet.token != old
    assert fleet.run("workers").returncode == 0
