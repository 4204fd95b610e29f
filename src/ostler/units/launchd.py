"""A service as a property list of launchd. See launchd.plist(5)."""

import plistlib
from pathlib import Path

from ostler.units.service import Scope, Service

SUFFIX = ".plist"
RESTART_S = 30


def folder(scope: Scope, home: Path) -> Path:
    return Path("/Library/LaunchDaemons") if scope == "system" else home / "Library" / "LaunchAgents"


def label(name: str) -> str:
    return f"org.ostler.{name}"


def plist(service: Service) -> bytes:
    entries: dict[str, object] = {
        "Label": label(service.name),
        "ProgramArguments": list(service.argv),
        "EnvironmentVariables": dict(sorted(service.environment.items())),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_S,
        "ExitTimeOut": int(service.stop_s),
        "AbandonProcessGroup": service.outlived,
        # Any other type is slowed down while somebody uses the machine.
        "ProcessType": "Interactive",
        "StandardOutPath": service.log,
        "StandardErrorPath": service.log,
    }
    if service.scope == "system":
        entries["UserName"] = service.user
    return plistlib.dumps(entries, sort_keys=False)
