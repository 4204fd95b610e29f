"""Certificates for tests, made as a hub makes them; and some that no hub would make."""

import datetime
import ssl
from pathlib import Path

from ostler.hub import certificates
from ostler.hub.certificates import Renewal
from ostler.tls import Identity, Trust

LOCAL = ("localhost", "127.0.0.1", "::1")


def issued(folder: Path, names: tuple[str, ...] = LOCAL, at: datetime.datetime | None = None) -> Renewal:
    """An authority in this folder, the same one every time, and under `hub.pem` what it has signed for these names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / certificates.OWN).unlink(missing_ok=True)
    renewal = Renewal(folder, folder, list(names))
    renewal(at)
    return renewal


def identity(folder: Path, names: tuple[str, ...] = LOCAL) -> Identity:
    issued(folder, names)
    return Identity(folder / certificates.OWN)


def context_for(folder: Path) -> ssl.SSLContext:
    """That of a client that knows this folder's authority."""
    return Trust(str(folder / "ca.pem")).context
