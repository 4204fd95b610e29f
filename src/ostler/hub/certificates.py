"""Certificates that a hub makes: an authority of its own, and what that signs. Loaded only where one is wanted.

The authority lies in the store, so that all hubs on one ledger show certificates of the same one: whoever knows one of
them knows all. Each hub's own certificate lies in its state folder, and is made anew long before it expires.
"""

import contextlib
import datetime
import ipaddress
import os
import socket
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ostler import config
from ostler.domain.errors import BadInput
from ostler.tls import fingerprint

AUTHORITY = "ca.key"
"""The authority's key with its certificate: one file, so that of two hubs that make one at once one is used by both."""
OWN = "hub.pem"
DAYS_OF_AUTHORITY, DAYS, RENEWED_BEFORE_DAYS = 3650, 90, 30
MOST_NAMES = 64
_PEM, _DER = serialization.Encoding.PEM, serialization.Encoding.DER


class Renewal:
    """The hub's own certificate: made where there is none that will do, signed by the authority in the store."""

    def __init__(self, store: Path, state: Path, names: list[str]) -> None:
        self._state = state
        self._names = names[:MOST_NAMES]
        self._key, self._authority = _authority(store)
        self.fingerprint = fingerprint(self._authority.public_bytes(_DER))
        for folder in {store, state}:
            _write(folder / config.CA_FILE, self._authority.public_bytes(_PEM), 0o644)

    def __call__(self, now: datetime.datetime | None = None) -> None:
        now = now or datetime.datetime.now(datetime.UTC)
        if not self._will_do(now):
            _write(self._state / OWN, self._made(now), 0o600)

    def _will_do(self, now: datetime.datetime) -> bool:
        with contextlib.suppress(OSError, ValueError, x509.ExtensionNotFound):
            own = x509.load_pem_x509_certificate((self._state / OWN).read_bytes())
            own.verify_directly_issued_by(self._authority)
            named = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            left = own.not_valid_after_utc - now
            return left > datetime.timedelta(days=RENEWED_BEFORE_DAYS) and set(named) == set(_general(self._names))
        return False

    def _made(self, now: datetime.datetime) -> bytes:
        """The key, the certificate, and the authority's: whoever knows that one by its fingerprint finds it there."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        certificate = (
            _builder(socket.gethostname(), key.public_key(), now, DAYS)
            .issuer_name(self._authority.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(_general(self._names)), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._authority.public_key()),  # type: ignore[arg-type]
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return _pem(key) + certificate.public_bytes(_PEM) + self._authority.public_bytes(_PEM)


def _authority(store: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    path = store / AUTHORITY
    if not path.exists():
        _write(path, _new_authority(), 0o600, once=True)
    text = path.read_bytes()
    try:
        key, certificate = serialization.load_pem_private_key(text, None), x509.load_pem_x509_certificate(text)
    except (ValueError, TypeError) as error:
        raise BadInput(f"tls: {path} is no authority's key and certificate: {error}", [("tls", "unreadable")]) from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, certificate


def _new_authority() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    name = f"Ostler {socket.gethostname()} {os.urandom(4).hex()}"
    builder = _builder(name, key.public_key(), now, DAYS_OF_AUTHORITY)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        builder.issuer_name(_named(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pem(key) + certificate.public_bytes(_PEM)


def _builder(name: str, key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A machine whose clock is behind can talk to this hub at once.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general(names: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            with contextlib.suppress(ValueError):  # a name that no certificate can hold
                found.append(x509.DNSName(name))
    return found


def self_signed_above(certificate: Path) -> str:
    """The fingerprint of the last certificate in the file, if nothing is above it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what an operator's authority has written is not ours to judge
        last = x509.load_pem_x509_certificates(certificate.read_bytes())[-1]
    return fingerprint(last.public_bytes(_DER)) if last.issuer == last.subject else ""


def names_in(certificate: Path) -> list[str]:
    """For what names and addresses the first certificate in the file stands."""
    with warnings.catch_warnings(), contextlib.suppress(x509.ExtensionNotFound):
        warnings.simplefilter("ignore")
        first = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
        named = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        addresses = [str(address) for address in named.get_values_for_type(x509.IPAddress)]
        return [*named.get_values_for_type(x509.DNSName), *addresses]
    return []


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(path: Path, data: bytes, mode: int, once: bool = False) -> None:
    """Whole or not at all, never for more eyes than it is meant for; `once`: not where another hub was first."""
    descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if once:
            with contextlib.suppress(FileExistsError):
                os.link(part, path)
        else:
            os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
