"""The machine's own keeper of services: what a service is told to it, and taken away from it, by."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from getpass import getuser
from pathlib import Path
from typing import Protocol

from ostler.domain.errors import NotAllowed, OstlerError
from ostler.units import launchd, systemd, windows
from ostler.units.service import Scope, Service

COMMAND_S = 60.0
"""For a command that only passes something on. One that stops a service takes as long as that does."""


class Refused(OstlerError):
    """The keeper of services did not do what it was told: its operator looks at what it said."""

    title = "service refused"


class Manager(Protocol):
    scope: Scope

    def is_present(self) -> bool:
        """Whether it runs here: in a container there is usually none."""
        ...

    def path(self, name: str) -> Path:
        """Where it keeps what it was told."""
        ...

    def text(self, service: Service) -> bytes: ...

    def enter(self, service: Service, *, start: bool) -> None:
        """Make the service what its file says, from now on; start it, or start it again as its file says."""
        ...

    def remove(self, name: str) -> None:
        """Stop it, and take it away. What is not there is taken away already."""
        ...

    def hint(self, name: str) -> str:
        """The command that shows what the service has said."""
        ...


class Systemd:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def is_present(self) -> bool:
        if shutil.which("systemctl") is None:
            return False
        said = _said(*self._control("is-system-running"))
        return said in ("initializing", "starting", "running", "degraded", "maintenance")

    def path(self, name: str) -> Path:
        return systemd.folder(self.scope, Path.home(), os.environ.get("XDG_CONFIG_HOME", "")) / self._unit(name)

    def text(self, service: Service) -> bytes:
        return systemd.unit(service).encode()

    def enter(self, service: Service, *, start: bool) -> None:
        unit = self._unit(service.name)
        _do(*self._control("daemon-reload"))
        _do(*self._control("enable", "--quiet", unit))
        if not start:
            return
        if service.outlived:
            # Its next start takes back what it leaves behind; told to stop, it would first wait for all of that.
            _said(*self._control("kill", "--kill-who=main", "--signal=KILL", unit))
        _do(*self._control("restart", unit), timeout_s=None)

    def remove(self, name: str) -> None:
        if self.path(name).exists():
            unit = self._unit(name)
            _do(*self._control("stop", unit), timeout_s=None)
            _do(*self._control("disable", "--quiet", unit))
            self.path(name).unlink(missing_ok=True)
            _do(*self._control("daemon-reload"))
            # A unit that has failed is remembered until then, though its file is gone.
            _said(*self._control("reset-failed", unit))

    def hint(self, name: str) -> str:
        return f"journalctl {'--user ' if self.scope == 'user' else ''}-u {self._unit(name)}"

    def _control(self, *words: str) -> list[str]:
        return ["systemctl", *(["--user"] if self.scope == "user" else []), "--no-ask-password", *words]

    def _unit(self, name: str) -> str:
        return name + systemd.SUFFIX


class Launchd:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def is_present(self) -> bool:
        return shutil.which("launchctl") is not None

    def path(self, name: str) -> Path:
        return launchd.folder(self.scope, Path.home()) / (launchd.label(name) + launchd.SUFFIX)

    def text(self, service: Service) -> bytes:
        return launchd.plist(service)

    def enter(self, service: Service, *, start: bool) -> None:
        if not start:
            return
        target = f"{self._domain()}/{launchd.label(service.name)}"
        if service.outlived:
            _said("launchctl", "kill", "SIGKILL", target)
        _said("launchctl", "bootout", target, timeout_s=None)
        _do("launchctl", "enable", target)
        _do("launchctl", "bootstrap", self._domain(), str(self.path(service.name)))

    def remove(self, name: str) -> None:
        _said("launchctl", "bootout", f"{self._domain()}/{launchd.label(name)}", timeout_s=None)
        self.path(name).unlink(missing_ok=True)

    def hint(self, name: str) -> str:
        return f"launchctl print {self._domain()}/{launchd.label(name)}"

    def _domain(self) -> str:
        """A user who came by ssh has no session with windows."""
        if self.scope == "system":
            return "system"
        uid = _uid()
        has_windows = _run(["launchctl", "print", f"gui/{uid}"], COMMAND_S).returncode == 0
        return f"{'gui' if has_windows else 'user'}/{uid}"


class Scheduled:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def is_present(self) -> bool:
        return shutil.which("schtasks") is not None

    def path(self, name: str) -> Path:
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "ostler" / f"{name}.xml"

    def text(self, service: Service) -> bytes:
        return windows.task(service)

    def enter(self, service: Service, *, start: bool) -> None:
        _said("schtasks", "/End", "/TN", self._task(service.name))
        _do("schtasks", "/Create", "/F", "/TN", self._task(service.name), "/XML", str(self.path(service.name)))
        if start:
            _do("schtasks", "/Run", "/TN", self._task(service.name))

    def remove(self, name: str) -> None:
        _said("schtasks", "/End", "/TN", self._task(name))
        _said("schtasks", "/Delete", "/F", "/TN", self._task(name))
        self.path(name).unlink(missing_ok=True)

    def hint(self, name: str) -> str:
        return f"schtasks /Query /V /FO LIST /TN {self._task(name)}"

    def _task(self, name: str) -> str:
        return f"\\Ostler\\{name}"


def manager(scope: Scope) -> Manager:
    """The one of this system."""
    if sys.platform == "darwin":
        return Launchd(scope)
    return Scheduled(scope) if sys.platform == "win32" else Systemd(scope)


def usual_scope(wanted: Scope | None) -> Scope:
    """What was asked for, else what this user may have."""
    if wanted == "system" and not is_administrator():
        raise NotAllowed("a service of the whole machine is root's to install: use sudo, or --user for one of your own")
    return wanted or ("system" if is_administrator() else "user")


def is_administrator() -> bool:
    if sys.platform == "win32":
        import ctypes

        return bool(ctypes.windll.shell32.IsUserAnAdmin())
    return os.geteuid() == 0


def install(keeper: Manager, service: Service, *, start: bool) -> None:
    """All of it, or what was there before."""
    path = keeper.path(service.name)
    text = keeper.text(service)
    before = path.read_bytes() if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(path, text)
        keeper.enter(service, start=start)
    except BaseException:
        _undo(keeper, service, before, start)
        raise


def _undo(keeper: Manager, service: Service, before: bytes | None, start: bool) -> None:
    """As far as it goes: what failed first is what is told."""
    path = keeper.path(service.name)
    with contextlib.suppress(OSError, OstlerError):
        if before is None:
            keeper.remove(service.name)
        else:
            _write(path, before)
            keeper.enter(service, start=start)
    if before is None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def shown(argv: tuple[str, ...]) -> str:
    """A command as it can be typed."""
    return subprocess.list2cmdline(argv) if sys.platform == "win32" else shlex.join(argv)


def may_end_with_its_user(keeper: Manager) -> bool:
    """Whether the service stops when its user logs out, because nobody has said otherwise."""
    return (
        isinstance(keeper, Systemd)
        and keeper.scope == "user"
        and not Path("/var/lib/systemd/linger", getuser()).exists()
    )


def _uid() -> int:
    return os.getuid() if sys.platform != "win32" else 0


def _write(path: Path, text: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(text)
    part.chmod(0o644)
    part.replace(path)


def _do(*command: str, timeout_s: float | None = COMMAND_S) -> None:
    done = _run(command, timeout_s)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).replace("\n", " ") or f"exit code {done.returncode}"
        raise Refused(f"`{' '.join(command)}` failed: {said}")


def _said(*command: str, timeout_s: float | None = COMMAND_S) -> str:
    """What it printed, whatever came of it."""
    return _run(command, timeout_s).stdout.strip()


def _run(command: tuple[str, ...] | list[str], timeout_s: float | None) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"`{' '.join(command)}` did not come back within {COMMAND_S:.0f} s") from None
    except OSError as error:
        raise Refused(f"`{command[0]}` cannot be run: {error.strerror}") from None
