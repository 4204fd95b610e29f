"""The wheel's way: built, installed on two machines with homes of their own, a hub on one, a worker on the other."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.process_fleet import until

ROOT = Path(__file__).parents[1]
PAGES = "ostler/dashboard/static/index.html"
UV = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
INSTALLS_S = 300.0

pytestmark = pytest.mark.timeout(900)


class Machine:
    """A home that is empty at first, and no keeper of services."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.home = home
        outside = {
            name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "XDG_", "VIRTUAL_ENV"))
        }
        self.environment = outside | {
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(home / "no-systemd"),
            "PATH": os.pathsep.join([str(home / "venv" / "bin"), os.environ["PATH"]]),
            "NO_COLOR": "1",
        }

    def install(self, wheel: Path) -> None:
        copy = shutil.copy(wheel, self.home)
        self._uv("venv", "--python", sys.executable, "venv")
        self._uv("pip", "install", "--python", "venv/bin/python", str(copy))

    def _uv(self, *arguments: str) -> None:
        # The cache of uv stays the user's own: an empty one would download every library once more.
        subprocess.run([str(UV), "--quiet", *arguments], cwd=self.home, check=True, timeout=INSTALLS_S)

    def run(self, *command: str) -> str:
        """The standard output of a command that succeeds."""
        done = subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=INSTALLS_S
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        with (self.home / f"{command[1]}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.home, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def logs(self) -> str:
        return "".join(f"{log.name}:\n{log.read_text()}" for log in self.home.glob("*.log"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / "src" / PAGES).exists():
        pytest.skip("the dashboard is not built: make dashboard (Node 18 or newer)")
    folder = tmp_path_factory.mktemp("dist")
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, timeout=INSTALLS_S)
    [built] = folder.glob("ostler-*.whl")
    return built


@pytest.fixture
def first(wheel: Path, tmp_path: Path) -> Machine:
    machine = Machine(tmp_path / "first")
    machine.install(wheel)
    return machine


@pytest.fixture
def hub(first: Machine) -> Iterator[str]:
    """The address of the hub that `ostler up` starts on the first machine."""
    port = str(free_port())
    up = first.start("ostler", "up", "--port", port, "--gateway-port", "0")
    try:
        until(lambda: "Ostler is up" in first.logs() or up.poll() is not None, "Ostler is up", INSTALLS_S)
        assert up.poll() is None, first.logs()
        first.environment["OSTLER_HUB"] = f"http://127.0.0.1:{port}"
        yield first.environment["OSTLER_HUB"]
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(INSTALLS_S) == 0, first.logs()


def test_the_wheel_holds_the_dashboard_the_licence_and_no_compiled_code(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert PAGES in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if name.endswith(".so")]
    assert wheel.name.endswith("-py3-none-any.whl")


def test_two_machines_with_the_wheel_are_a_fleet(wheel: Path, first: Machine, hub: str, tmp_path: Path) -> None:
    assert first.run("python", "-m", "ostler", "--version").startswith("ostler ")
    assert first.run("ostler", "run", "--", "python3", "-c", "print('a first job')").splitlines()[-1] == "a first job"
    with urllib.request.urlopen(hub, timeout=60) as page:
        assert b"<title>Ostler</title>" in page.read()

    second = Machine(tmp_path / "second")
    second.install(wheel)
    token = first.run("ostler", "token", "create", "--join").strip()
    joined = second.run("ostler", "join", hub, token, "--user", "--name", "second", "--label", "zone=attic")
    worker = second.start(*shlex.split(joined.splitlines()[-1]))
    try:
        shown = first.run("ostler", "run", "--where", "zone = attic", "--", "sh", "-c", "echo $HOME")
        assert shown.splitlines()[-1] == str(second.home)
    finally:
        worker.terminate()
        assert worker.wait(INSTALLS_S) == 0, second.logs()
