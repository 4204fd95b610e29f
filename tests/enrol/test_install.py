"""What each keeper of services is told, in which order, and what is left when it refuses. The keepers are scripts that
write down what they are told: two of the three do not exist here, and none refuses on request."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.process_fleet import OSTLER, ProcessFleet

from ostler.client.http import Hub
from ostler.units.install import Launchd, Manager, Refused, Scheduled, Systemd, install
from ostler.units.service import Service

SCRIPT = """#!/bin/sh
echo "$@" >> "{log}"
case " $* " in
*" is-system-running "*) echo running ;;
*" {refuses} "*) echo "cannot do that here" >&2; exit 1 ;;
esac
"""


class Keepers:
    """The commands of all three, as one machine would never have them."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.bin = folder / "bin"
        self._log = folder / "told"
        for path in (self.home, self.bin):
            path.mkdir()
        self.refuse("nothing")

    def refuse(self, word: str) -> None:
        self._log.write_text("")
        for name in ("systemctl", "launchctl", "schtasks"):
            (self.bin / name).write_text(SCRIPT.format(log=self._log, refuses=word))
            (self.bin / name).chmod(0o755)

    def told(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def keepers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keepers:
    found = Keepers(tmp_path)
    monkeypatch.setenv("HOME", str(found.home))
    monkeypatch.setenv("LOCALAPPDATA", str(found.home / "AppData"))
    monkeypatch.setenv("PATH", f"{found.bin}:{os.environ['PATH']}")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return found


def service(title: str = "Ostler worker w1") -> Service:
    return Service(
        name="ostler-worker-w1",
        title=title,
        argv=(sys.executable, "-c", "pass"),
        scope="user",
        user="ann",
        stop_s=660,
        log="/tmp/w1.log",
        outlived=True,
    )


TOLD = {
    Systemd: [
        "--user --no-ask-password daemon-reload",
        "--user --no-ask-password enable --quiet ostler-worker-w1.service",
        "--user --no-ask-password kill --kill-who=main --signal=KILL ostler-worker-w1.service",
        "--user --no-ask-password restart ostler-worker-w1.service",
    ],
    Launchd: [
        "print gui/{uid}",
        "kill SIGKILL gui/{uid}/org.ostler.ostler-worker-w1",
        "bootout gui/{uid}/org.ostler.ostler-worker-w1",
        "enable gui/{uid}/org.ostler.ostler-worker-w1",
        "print gui/{uid}",
        "bootstrap gui/{uid} {home}/Library/LaunchAgents/org.ostler.ostler-worker-w1.plist",
    ],
    Scheduled: [
        "/End /TN \\Ostler\\ostler-worker-w1",
        "/Create /F /TN \\Ostler\\ostler-worker-w1 /XML {home}/AppData/ostler/ostler-worker-w1.xml",
        "/Run /TN \\Ostler\\ostler-worker-w1",
    ],
}
REFUSES = {Systemd: "restart", Launchd: "bootstrap", Scheduled: "/Create"}


@pytest.fixture(params=list(TOLD), ids=lambda kind: kind.__name__)
def keeper(request: pytest.FixtureRequest, keepers: Keepers) -> Manager:
    found: Manager = request.param("user")
    return found


def test_a_service_is_written_entered_and_started_and_taken_away_again(keeper: Manager, keepers: Keepers) -> None:
    assert keeper.is_present()
    keepers.refuse("nothing")
    install(keeper, service(), start=True)
    expected = [line.format(uid=os.getuid(), home=keepers.home) for line in TOLD[type(keeper)]]
    assert keepers.told() == expected
    assert keeper.path("ostler-worker-w1").read_bytes() == keeper.text(service())
    keeper.remove("ostler-worker-w1")
    assert not keeper.path("ostler-worker-w1").exists()
    keeper.remove("ostler-worker-w1")


def test_a_keeper_that_refuses_is_quoted_and_nothing_is_left(keeper: Manager, keepers: Keepers) -> None:
    keepers.refuse(REFUSES[type(keeper)])
    with pytest.raises(Refused, match="cannot do that here"):
        install(keeper, service(), start=True)
    assert not keeper.path("ostler-worker-w1").exists()


def test_an_update_that_is_refused_leaves_what_was_there(keeper: Manager, keepers: Keepers) -> None:
    install(keeper, service(), start=True)
    keepers.refuse(REFUSES[type(keeper)])
    with pytest.raises(Refused):
        install(keeper, service("another title"), start=True)
    assert keeper.path("ostler-worker-w1").read_bytes() == keeper.text(service())


def test_a_keeper_that_is_not_there_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not any(kind("user").is_present() for kind in (Systemd, Launchd, Scheduled))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Refused, match="cannot be run"):
        install(Systemd("user"), service(), start=True)
    assert list(tmp_path.rglob("*.service")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the command asks systemd on Linux only")
def test_a_join_that_fails_late_says_what_is_left_and_can_be_repeated(keepers: Keepers, tmp_path: Path) -> None:
    fleet = ProcessFleet(tmp_path)
    fleet.start_hub()
    try:
        with Hub(fleet.url, (fleet.state / "admin.token").read_text().strip()) as hub:
            token = str(hub.create_token("join-once")["token"])
        state = tmp_path / "machine"
        command = [*OSTLER, "join", fleet.url, token, "--user", "--name", "box", "--state-dir", str(state)]

        def join(*more: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run([*command, *more], env=dict(os.environ), capture_output=True, text=True, timeout=100)

        keepers.refuse("enable")
        failed = join()
        assert failed.returncode == 1 and "cannot do that here" in failed.stderr
        assert "the join token is spent" in failed.stderr
        unit = Systemd("user").path("ostler-worker-box")
        assert not unit.exists() and (state / "workers/box/enrolled.token").exists()
        keepers.refuse("nothing")
        again = join("--no-start")
        assert again.returncode == 0 and "to be started" in again.stdout, again.stdout + again.stderr
        assert unit.exists()
        assert not any("restart" in line for line in keepers.told())
    finally:
        fleet.close()
