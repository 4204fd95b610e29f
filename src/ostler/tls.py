"""Who a hub is: what it shows of itself to whoever connects, and by what it is known to them.

A hub's certificates are its own authority's, or those that its operator gave it. Whoever talks to one knows it by a
file of certificates, by the fingerprint of one that it shows, or by what the system trusts.
"""

import hashlib
import logging
import socket
import ssl
import threading
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ostler.domain.errors import BadInput

AUTO = "auto"
PIN = "sha256:"
CONNECT_S = 5.0
HEX_DIGITS = 64

_log = logging.getLogger("ostler.tls")


def fingerprint(der: bytes) -> str:
    """Of one certificate: 64 digits, the same wherever they are computed (`openssl x509 -fingerprint -sha256`)."""
    return hashlib.sha256(der).hexdigest()


class Trust:
    """`given` is a file of certificates, or `sha256:` and a fingerprint: nothing else is trusted then. Without it the
    system's authorities are, and beside them those in `found`."""

    def __init__(self, given: str = "", found: Path | None = None) -> None:
        self.given = given
        self._found = found
        self._pin = read_pin(given)
        self._meeting = threading.Lock()
        self.unknown = bool(self._pin)
        """The fingerprint alone is known; the certificate is yet to be seen."""
        self.pem = ""
        """The certificate that a fingerprint has led to."""

    @cached_property
    def context(self) -> ssl.SSLContext:
        """For connections to hubs: it stays the same, also where it learns."""
        if self._pin:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        else:
            context = ssl.create_default_context(cafile=self._file())
            if self._found is not None and not self.given:
                context.load_verify_locations(self._found)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def _file(self) -> str | None:
        if not self.given:
            return None
        path = Path(self.given).expanduser()
        try:
            if "BEGIN CERTIFICATE" in path.read_text(encoding="ascii", errors="replace"):
                return str(path)
        except OSError as error:
            raise _bad(f"{path} cannot be read: {error.strerror}") from None
        raise _bad(f"{path} holds no certificate; it begins with -----BEGIN CERTIFICATE-----")

    def certificates(self) -> str:
        """Those that are trusted because they were given, as text that a file may hold; empty: the system's are."""
        if self._pin or not self.given:
            return self.pem
        return Path(self.given).expanduser().read_text()

    def meet(self, url: str) -> None:
        """Before anything is sent to a hub that is known by its fingerprint: look at what it shows, and trust that
        certificate from now on. Raises OSError: it is not there, or it is another one."""
        address = urlsplit(url)
        if address.scheme == "https" and self.unknown:
            with self._meeting:
                if not self.pem:
                    self._learn(shown_at(address.hostname or "", address.port or 443))

    def _learn(self, shown: list[bytes]) -> None:
        chosen = next((one for one in shown if fingerprint(one) == self._pin), None)
        if chosen is None:
            raise ssl.SSLCertVerificationError(
                f"it shows no certificate with the fingerprint {PIN}{self._pin}: it is another hub, or somebody in "
                "between; nothing was sent to it"
            )
        self.pem = ssl.DER_cert_to_PEM_cert(chosen)
        self.context.load_verify_locations(cadata=self.pem)
        self.unknown = False


def read_pin(given: str) -> str:
    """The fingerprint in `sha256:…`, with or without colons; empty where this is a file's name."""
    if not given.startswith(PIN):
        return ""
    digits = given.removeprefix(PIN).replace(":", "").lower()
    if len(digits) != HEX_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise _bad(f"a fingerprint is {PIN} and {HEX_DIGITS} hexadecimal digits; this one was cut, or is none")
    return digits


def shown_at(host: str, port: int) -> list[bytes]:
    """The certificates that are shown there, which prove nothing yet. Nothing is said beyond the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), CONNECT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return _chain(secured)


def _chain(secured: Any) -> list[bytes]:
    if hasattr(secured, "get_unverified_chain"):  # from Python 3.13 on
        return [bytes(one) for one in secured.get_unverified_chain()]
    import _ssl

    der: int = _ssl.ENCODING_DER
    return [one.public_bytes(der) for one in secured._sslobj.get_unverified_chain() or ()]


def is_untrusted(error: BaseException | None) -> bool:
    """Whether somebody answered who could not show who it is."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        inner = error.args[0] if error.args and isinstance(error.args[0], BaseException) else None
        error = inner or getattr(error, "reason", None) or error.__cause__
        error = error if isinstance(error, BaseException) else None
    return False


class Wanted(msgspec.Struct, frozen=True):
    """How a hub is to be spoken to: with a certificate of its own making, with a given one, or without TLS."""

    mode: str = ""
    certificate: Path | None = None
    key: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.mode or self.certificate)

    def options(self) -> list[str]:
        """For a hub's command line."""
        if self.certificate is None:
            return ["--tls", self.mode] if self.mode else []
        return ["--tls-cert", str(self.certificate), "--tls-key", str(self.key)]

    def checked(self) -> "Wanted":
        if self.mode not in ("", AUTO):
            raise _wrong(f"{self.mode!r} is not known; write `--tls {AUTO}`, or give --tls-cert and --tls-key")
        if (self.certificate is None) != (self.key is None):
            raise _wrong(f"--tls-cert and --tls-key go together: give both, or `--tls {AUTO}` for ones of its own")
        if self.mode and self.certificate is not None:
            raise _wrong(f"give either `--tls {AUTO}` or --tls-cert and --tls-key, not both")
        return self


class Identity:
    """What a listener shows: a certificate with those above it, and its key, perhaps in one file."""

    def __init__(self, certificate: Path, key: Path | None = None) -> None:
        self.certificate = certificate
        self.key = key or certificate
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._marks = self._look_at_files()
        self._load()

    def look(self) -> bool:
        """Whether the files have been replaced: who connects from now on is shown the new ones, and who is connected
        stays. A pair that does not fit, because one of them is yet to come, is left alone until it does."""
        try:
            marks = self._look_at_files()
            if marks == self._marks:
                return False
            self._load()
        except BadInput as error:
            _log.warning("the certificate that is shown stays the old one: %s", error)
            return False
        self._marks = marks
        return True

    def _load(self) -> None:
        try:
            self.context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ValueError) as error:  # of ssl too
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise BadInput(
                f"tls: {self.certificate} and {self.key} are no certificate and its key: {why}",
                [("tls", "no certificate and key")],
            ) from None

    def _look_at_files(self) -> list[tuple[int, int]]:
        try:
            return [(found.st_ino, found.st_mtime_ns) for found in (self.certificate.stat(), self.key.stat())]
        except OSError as error:
            raise BadInput(
                f"tls: {error.filename} cannot be read: {error.strerror}", [("tls", "cannot be read")]
            ) from None


def _wrong(what: str) -> BadInput:
    return BadInput(f"tls: {what}", [("tls", what)])


def _no_password() -> str:
    raise ValueError("the key is locked by a password; give one that is not, for the hub's user alone (mode 0600)")


def _bad(what: str) -> BadInput:
    return BadInput(f"ca: {what}", [("ca", "not a certificate")])
