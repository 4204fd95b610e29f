"""What this machine keeps of the hubs that it has joined, and the services that serve them."""

import contextlib
import os
import sys
from getpass import getuser
from pathlib import Path

import msgspec

from ostler import config
from ostler.cli.programs import Offering
from ostler.domain.errors import BadInput, NotFound
from ostler.domain.hubs import same_fleet
from ostler.tls import Trust
from ostler.units.service import Scope, Service

RECORD, TOKEN, CA = "enrolment.json", "enrolled.token", "hub-ca.pem"
NEWER_TOKEN = "worker.token"
"""The worker's own, where the hub has given it another since."""
STOPS_AFTER_S = 60.0
"""Beyond its drain: for the last results, and for processes that do not want to end."""
HUB_STOPS_S = 60.0
NOT_ALLOWED = 4
"""The hub does not let the worker in: nothing but an operator changes that."""
PASSED_ON = (
    "CUDA_VISIBLE_DEVICES",
    "LANG",
    "LD_LIBRARY_PATH",
    "OSTLER_SNAPSHOT_CACHE_GB",
    "PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
)
"""What tasks find, or what finds the hub, in the shell that joins: a service would be without. None holds a secret."""


class Enrolment(msgspec.Struct, kw_only=True):
    """One worker of this machine, and the hub that knows it."""

    hub: str
    name: str
    scope: Scope
    pull: bool = False
    ca: bool = False
    """Whether the hub is known by a certificate that is kept beside this, and by no other."""

    @property
    def service(self) -> str:
        return f"ostler-worker-{self.name}"


class Enrolments:
    """Those of one state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def token_file(self, name: str) -> Path:
        return self._folder(name) / TOKEN

    def ca_file(self, name: str) -> Path:
        return self._folder(name) / CA

    def trust(self, enrolment: "Enrolment") -> Trust:
        """By what this machine knows the hub that it has joined."""
        return Trust(str(self.ca_file(enrolment.name))) if enrolment.ca else config.trust(None, self.state)

    def read(self, name: str) -> Enrolment | None:
        try:
            return msgspec.json.decode((self._folder(name) / RECORD).read_bytes(), type=Enrolment)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None

    def token(self, name: str) -> str:
        """The newest that its hub has given it."""
        known = self.read(name)
        for file in (self._folder(name) / NEWER_TOKEN, self.token_file(name)):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, IndexError):
                secret, *whose = file.read_text().split()
                if not whose or (known is not None and same_fleet(whose[0], known.hub)):
                    return secret
        return ""

    def the_one(self, name: str | None) -> Enrolment:
        """The one of this name; where none is given, the only one."""
        found = [one for path in sorted(self.state.glob(f"workers/*/{RECORD}")) if (one := self.read(path.parent.name))]
        chosen = [one for one in found if name in (None, one.name)]
        if not chosen:
            raise NotFound(
                f"no worker{f' named {name}' if name else ''} of this machine has joined a hub by {self.state}"
            )
        if len(chosen) > 1:
            raise BadInput(f"several workers of this machine have joined; choose one (--name): {_names(chosen)}")
        return chosen[0]

    def keep(self, enrolment: Enrolment, token: str, ca: str) -> None:
        self._folder(enrolment.name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if token != self.token(enrolment.name):
            _write(self.token_file(enrolment.name), f"{token}\n".encode())
            (self._folder(enrolment.name) / NEWER_TOKEN).unlink(missing_ok=True)
        if enrolment.ca:
            _write(self.ca_file(enrolment.name), ca.encode())
        _write(self._folder(enrolment.name) / RECORD, msgspec.json.format(msgspec.json.encode(enrolment)) + b"\n")

    def forget(self, name: str) -> None:
        for file in (TOKEN, NEWER_TOKEN, CA, RECORD):
            (self._folder(name) / file).unlink(missing_ok=True)

    def _folder(self, name: str) -> Path:
        return self.state / "workers" / name


def worker_service(enrolment: Enrolment, offering: Offering, state: Path) -> Service:
    token = f"@{Enrolments(state).token_file(enrolment.name)}"
    argv = _python("ostler.pull") if enrolment.pull else (*_python("ostler"), "worker")
    argv += ("--hub", enrolment.hub, "--token", token, "--name", enrolment.name, "--state-dir", str(state))
    argv += ("--ca", str(Enrolments(state).ca_file(enrolment.name))) if enrolment.ca else ()
    return Service(
        name=enrolment.service,
        title=f"Ostler worker {enrolment.name}",
        argv=(*argv, *_options(offering)),
        scope=enrolment.scope,
        user=getuser(),
        stop_s=offering.drain_seconds + STOPS_AFTER_S,
        log=str(state / "workers" / enrolment.name / "worker.log"),
        environment=_environment(),
        outlived=not enrolment.pull,
        final_codes=(NOT_ALLOWED,),
    )


def hub_service(options: list[str], scope: Scope, state: Path) -> Service:
    return Service(
        name="ostler-hub",
        title="Ostler hub",
        argv=(*_python("ostler"), "hub", *options),
        scope=scope,
        user=getuser(),
        stop_s=HUB_STOPS_S,
        log=str(state / "hub.log"),
        environment=_environment(),
    )


def _python(module: str) -> tuple[str, ...]:
    """This very interpreter, and nothing that lies in the folder where it happens to be started."""
    return (sys.executable, "-P", "-m", module)


def _options(offering: Offering) -> list[str]:
    words = [word for label in offering.label or [] for word in ("--label", label)]
    for option, value in (("--slots", offering.slots), ("--service-slots", offering.service_slots)):
        if value is not None:
            words += [option, str(value)]
    if offering.offer is not None:
        words += ["--offer", str(offering.offer.expanduser().absolute())]
    if offering.drain_seconds != Offering.drain_seconds:
        words += ["--drain-seconds", f"{offering.drain_seconds:g}"]
    return words


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}


def _names(found: list[Enrolment]) -> str:
    return ", ".join(one.name for one in found)


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, and from its first moment for its owner alone."""
    part = path.with_name(f".{path.name}.part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
