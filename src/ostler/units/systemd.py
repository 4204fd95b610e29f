"""A service as a unit of systemd. What is quoted, and how, is in systemd.syntax(7) and systemd.service(5)."""

from pathlib import Path

from ostler.units.service import Scope, Service

SUFFIX = ".service"
RESTART_S = 10
_NOT_IN_A_PROGRAMS_PATH = set("$\"'\\")
"""systemd refuses such a path, or passes it on changed."""


def folder(scope: Scope, home: Path, config_home: str = "") -> Path:
    if scope == "system":
        return Path("/etc/systemd/system")
    return Path(config_home or home / ".config") / "systemd" / "user"


def unit(service: Service) -> str:
    sections = {"Unit": _unit(service), "Service": _service(service), "Install": _install(service)}
    return "\n".join(f"[{name}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in sections.items())


def _unit(service: Service) -> list[str]:
    lines = [f"Description={_percent(service.title)}"]
    if service.scope == "system":
        lines += ["Wants=network-online.target", "After=network-online.target"]
    # However often it fails: the machine may be without its network, or its disk full, for a night.
    return [*lines, "StartLimitIntervalSec=0"]


def _service(service: Service) -> list[str]:
    lines = [
        "Type=exec",
        f"ExecStart={command(service.argv)}",
        *(f"Environment={quoted(f'{name}={value}')}" for name, value in sorted(service.environment.items())),
        "Restart=on-failure",
        f"RestartSec={RESTART_S}",
        f"TimeoutStopSec={service.stop_s:.0f}",
        # The main process is told to stop and stops its own. `process` also leaves them alone when it is killed.
        f"KillMode={'process' if service.outlived else 'mixed'}",
        # One that needs too much memory ends alone; the default would stop the service, and all others with it.
        "OOMPolicy=continue",
        "TasksMax=infinity",
    ]
    if service.outlived:
        lines.append("Delegate=yes")  # a worker divides its own group among its tasks
    if service.final_codes:
        lines.append(f"RestartPreventExitStatus={' '.join(map(str, service.final_codes))}")
    if service.scope == "system":
        lines.append(f"User={_percent(service.user)}")
    return lines


def _install(service: Service) -> list[str]:
    return [f"WantedBy={'multi-user' if service.scope == 'system' else 'default'}.target"]


def command(argv: tuple[str, ...]) -> str:
    """A command line in which nothing is replaced."""
    words = argv
    if _NOT_IN_A_PROGRAMS_PATH & set(argv[0]):
        words = ("/usr/bin/env", *argv)
    return " ".join(quoted(word).replace("$", "$$") for word in words)


def quoted(word: str) -> str:
    return '"' + _percent(word.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _percent(text: str) -> str:
    return text.replace("%", "%%")
