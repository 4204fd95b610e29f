"""Secrets are planted, everything is done with them that can be done, and then they are looked for: in the database, in
every file, in what was printed and answered, in the list of processes and in what tasks are given."""

import base64
import contextlib
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from tests.process_fleet import OSTLER, processes_with, until
from tests.tls.papers import context_for
from tests.tls.test_with_hub import SETTINGS, Done, TlsFleet

import ostler
from ostler.domain.joining import read_invitation

PLANTED = {"admin": "canary-admin-7Hq2vX9pLm4RtZ8w", "join": "canary-join-3Bn6yK1sFd5GcV0j"}
API_KEY = "canary-key-9Wd4rT7uJh2MxQ5e"
WRONG = "canary-wrong-5Pz8kN3aSv6BqY1o"
WHERE_THEY_BELONG = {
    "admin.token",
    "join.token",
    "session.key",
    "ca.key",
    "hub.pem",
    "enrolled.token",
    "worker.token",
    "user.token",
    "ostler.toml",
}
"""Files for their owner alone, whose purpose it is to hold one."""
SHOWS_ALL = "cat /proc/self/environ | tr '\\0' '\\n'; tr '\\0' ' ' < /proc/$PPID/cmdline; sleep 600"


class CanaryFleet(TlsFleet):
    """A hub that was started with known secrets, a worker that joined it, and everything that anybody has seen."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.canaries: dict[str, str] = {"key": API_KEY, "wrong": WRONG}
        self.seen: dict[str, bytes] = {}
        (self.state / "ostler.toml").write_text(f'{SETTINGS}\n[gateway]\napi_keys = ["{API_KEY}"]\n')
        for kind, secret in PLANTED.items():
            (self.state / f"{kind}.token").write_text(secret)
            (self.state / f"{kind}.token").chmod(0o600)
            self.canaries[kind] = secret

    def do(self, *arguments: str, shows: str = "", **environment: str) -> Done:
        """A command as it is typed; `shows` is the one secret that it is there to print."""
        done = self.run(*arguments, env=self.environment | environment, timeout=60)
        self.seen[" ".join(arguments)[:60]] = (done.stdout + done.stderr).replace(shows or "\0", "").encode()
        return done

    def make(self, *arguments: str) -> str:
        """A token; from now on it is looked for."""
        done = self.run("token", "create", *arguments, "--json")
        secret = str(json.loads(done.stdout)["token"])
        self.canaries[" ".join(arguments)] = read_invitation(secret)[1]
        return secret

    def ask(self, path: str, token: str, port: int = 0, method: str = "GET", body: bytes | None = None) -> int:
        """What is answered is seen, whatever it is."""
        url = f"https://127.0.0.1:{port or self.port}{path}"
        asked = urllib.request.Request(url, body, {"Authorization": f"Bearer {token}"}, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=60, context=context_for(self.state)) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read() + str(error.headers).encode()
        self.seen[f"{method} {path} {status}"] = text
        return status


@pytest.fixture
def coop(tmp_path: Path) -> Iterator[CanaryFleet]:
    found = CanaryFleet(tmp_path)
    try:
        found.start_hub()
        yield found
    finally:
        found.close()
        for process in processes_with(str(tmp_path)):
            with contextlib.suppress(psutil.Error):
                process.kill()


def joined(coop: CanaryFleet) -> list[str]:
    invitation = coop.make("--join")
    environment = coop.environment | {"OSTLER_STATE_DIR": str(coop.folder / "far"), "XDG_RUNTIME_DIR": "/nowhere"}
    done = subprocess.run(
        [*OSTLER, "join", coop.url, invitation, "--user", "--name", "far"],
        capture_output=True,
        text=True,
        env=environment | {"HOME": str(coop.folder)},
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    coop.seen["join"] = (done.stdout + done.stderr).encode()
    coop.canaries["enrolled"] = (coop.folder / "far" / "workers" / "far" / "enrolled.token").read_text().strip()
    return shlex.split(done.stdout.splitlines()[-1])


def everything_is_done(coop: CanaryFleet) -> str:
    """The id of a task that runs on."""
    user = coop.make("--role", "user", "--user", "ann")
    file = coop.folder / "user.token"
    file.write_text(user)
    file.chmod(0o600)
    runs_on = coop.submit("--", "sh", "-c", SHOWS_ALL)
    assert coop.do("run", "--token", f"@{file}", "--", "sh", "-c", "env; echo x > $OSTLER_OUT/y").returncode == 0
    assert coop.do("run", "--", "false", OSTLER_TOKEN=user).returncode == 1
    with ostler.connect(coop.url, user, coop.state) as client:
        assert client.submit(lambda: dict(os.environ)).result(timeout=60)
        assert repr(client) + repr(client.hub) and list(client.map(str, range(3))) == ["0", "1", "2"]
    assert coop.do("token", "list", "--all").returncode == 0
    tokens = coop.json("token", "list")["tokens"]
    [of_user] = [one["id"] for one in tokens if one["user"] == "ann"]
    shown = json.loads(coop.run("token", "rotate", of_user, "--json").stdout)["token"]
    coop.canaries["rotated"] = shown
    [of_worker] = [one["id"] for one in tokens if one["user"] == "far"]
    assert coop.do("token", "rotate", of_worker).returncode == 0
    coop.canaries["worker's new"] = (coop.folder / "far" / "workers" / "far" / "worker.token").read_text().split()[0]
    for command in (
        ("workers",),
        ("jobs",),
        ("status",),
        ("config", "show"),
        ("doctor",),
        ("why", runs_on),
        ("models",),
    ):
        coop.do(*command)
    assert coop.do("backup", str(coop.folder / "backup")).returncode == 0
    for path in ("/v1/me", "/v1/tokens", "/v1/status", "/metrics", "/openapi.json", "/v1/nothing"):
        coop.ask(path, PLANTED["admin"])
        assert coop.ask(path, WRONG) == 401
    coop.ask("/v1/session", "", method="POST", body=json.dumps({"token": WRONG}).encode())
    coop.ask("/v1/jobs", WRONG, method="POST", body=b'{"command": ["true"]}')
    for key in (API_KEY, WRONG, user):
        coop.ask("/v1/models", key, coop.gateway_port)
    asked = json.dumps({"model": "tiny", "messages": []}).encode()
    assert coop.ask("/v1/chat/completions", API_KEY, coop.gateway_port, "POST", asked) == 200
    coop.do("workers", OSTLER_TOKEN=WRONG)
    coop.do("workers", "--hub", "https://127.0.0.1:1", OSTLER_TOKEN=WRONG)
    coop.do("worker", "--name", "nobody", OSTLER_TOKEN=WRONG)
    refused = coop.run("workers", "--hub", f"https://{WRONG}@127.0.0.1:{coop.port}")
    assert refused.returncode == 2
    coop.seen["in an address"] = (refused.stdout + refused.stderr).encode()
    return runs_on


def spellings(secret: str) -> set[bytes]:
    text = secret.encode()
    return {text, quote(secret, safe="").encode(), base64.b64encode(text).rstrip(b"="), text.hex().encode()}


def found_in(canaries: dict[str, str], data: bytes) -> list[str]:
    return [name for name, secret in canaries.items() if any(one in data for one in spellings(secret))]


def dumped(coop: CanaryFleet) -> bytes:
    """The database as text, and as it lies on the disk."""
    copy = sqlite3.connect(f"file:{coop.state / 'ostler.db'}?mode=ro", uri=True)
    try:
        return "\n".join(copy.iterdump()).encode()
    finally:
        copy.close()


def test_no_secret_is_found_where_it_does_not_belong(coop: CanaryFleet) -> None:
    command = joined(coop)
    inherited = {"OSTLER_TOKEN": "canary-env-2Xc7vB5nMq9LkJ4h", "HF_TOKEN": "canary-hf-6Ty1uI8oPa3SdF0g"}
    coop.canaries |= inherited
    log = (coop.folder / "far.log").open("wb")
    worker = subprocess.Popen(
        [*command, "--slots", "4", "--drain-seconds", "0.5"], env=coop.environment | inherited, stderr=log, stdout=log
    )
    try:
        until(lambda: "far" in coop.workers(), "the worker has registered", process=worker)
        runs_on = everything_is_done(coop)
        places = dict(coop.seen)
        places["the running task's log"] = coop.fetch(f"/v1/jobs/{runs_on}/logs")
        assert b"OSTLER_ATTEMPT" in places["the running task's log"], "it shows what tasks are given"
        places["the database"] = dumped(coop)
        assert b"CREATE TABLE" in places["the database"] and b"far" in places["the database"]
        for process in processes_with(str(coop.folder)):
            with contextlib.suppress(psutil.Error, OSError):
                places[f"the command line of {process.pid}"] = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                if "sleep" in process.name():
                    places[f"the environment of {process.pid}"] = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert any(place.startswith("the environment") for place in places)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        log.close()
    for kept in ("ca.key", "hub.pem"):
        lines = (coop.state / kept).read_text().splitlines()
        coop.canaries[kept] = lines[1]
    for path in coop.folder.rglob("*"):
        if path.is_file() and path.name not in WHERE_THEY_BELONG:
            places[str(path.relative_to(coop.folder))] = path.read_bytes()
    assert len(coop.canaries) >= 10 and {"hub.log", "far.log", "state/ostler.db"} <= places.keys()
    leaks = {place: found for place, data in places.items() if (found := found_in(coop.canaries, data))}
    assert not leaks


def test_a_secret_would_be_found() -> None:
    for spelled in spellings(API_KEY):
        assert found_in({"key": API_KEY}, b"before " + spelled + b" after") == ["key"]
    assert found_in({"key": API_KEY}, API_KEY[:-1].encode()) == []
