"""Users' secrets: sealed with a key beside the ledger, opened only for the assignment of a job that names them.

The ledger keeps `NAME@OWNER` under one scope; what is in it is of no use without the key. Losing the key loses them.
"""

import base64
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from ostler.domain.errors import BadInput, NotFound, OstlerError, QuotaExceeded
from ostler.domain.records import KeptRecord
from ostler.domain.secrets import FLEET, MAX_BYTES, NAME, parse

SCOPE = "secret"
KEY_FILE = "secret.key"
KEY_BYTES, NONCE_BYTES = 32, 12
MOST_OF_A_USER = 100

_log = logging.getLogger("ostler.hub")


class Sealed(msgspec.Struct, kw_only=True):
    box: bytes
    at: float
    by: str
    """Who set it."""


class Shown(msgspec.Struct, kw_only=True):
    """All that anybody is ever told of one."""

    name: str
    user: str
    fleet: bool
    at: float
    by: str


class _Naming(msgspec.Struct):
    """What is read of a spec."""

    user_id: str = ""
    secrets: list[str] = []


class Secrets:
    def __init__(self, folder: Path, kept: dict[str, bytes], wall: Callable[[], float]) -> None:
        self._file = folder / KEY_FILE
        self._wall = wall
        self._known = {key: msgspec.json.decode(value, type=Sealed) for key, value in kept.items()}

    def shown(self, users: Iterable[str] | None = None) -> list[Shown]:
        """Of these users, or of all."""
        wanted = None if users is None else set(users)
        found = []
        for key, sealed in sorted(self._known.items()):
            name, _, owner = key.partition("@")
            if wanted is None or owner in wanted:
                found.append(Shown(name=name, user=owner, fleet=owner == FLEET, at=sealed.at, by=sealed.by))
        return found

    # Changes: a row to commit, and what is so once that is durable

    def sealed(self, owner: str, name: str, value: bytes, by: str) -> tuple[KeptRecord, Sealed]:
        if NAME.fullmatch(name) is None:
            raise BadInput(
                f"name: {name[:80]!r} cannot be a secret's name; it may have letters, digits, '_', '.' and '-'",
                [("name", "not a name")],
            )
        if not 0 < len(value) <= MAX_BYTES:
            raise BadInput(f"a secret has 1 to {MAX_BYTES} bytes, not {len(value)}", [("body", "wrong size")])
        key = _key(owner, name)
        if key not in self._known and len(self.shown([owner])) >= MOST_OF_A_USER:
            raise QuotaExceeded(f"there are {MOST_OF_A_USER} secrets already; delete one that is not used any more")
        nonce = secrets.token_bytes(NONCE_BYTES)
        box = nonce + self._cipher(make=True).encrypt(nonce, value, key.encode())
        found = Sealed(box=box, at=self._wall(), by=by)
        return KeptRecord(scope=SCOPE, key=key, value=msgspec.json.encode(found)), found

    def know(self, owner: str, name: str, sealed: Sealed) -> None:
        self._known[_key(owner, name)] = sealed

    def removal(self, owner: str, name: str) -> KeptRecord:
        if _key(owner, name) not in self._known:
            raise NotFound(f"there is no secret {name!r}")
        return KeptRecord(scope=SCOPE, key=_key(owner, name), value=None)

    def forget(self, owner: str, name: str) -> None:
        self._known.pop(_key(owner, name), None)

    # For jobs

    def missing(self, user: str, wanted: Iterable[str]) -> list[str]:
        names = [found.name for text in wanted if (found := parse(text)) is not None]
        return [name for name in names if self._find(user, name) is None]

    def check(self, user: str, wanted: list[str]) -> None:
        """When a job is submitted: whoever misspelt a name hears of it now."""
        if wanted and (absent := self.missing(user, wanted)):
            told = f"there is no secret {absent[0]!r} of {user}; `ostler secret set {absent[0]}` makes it"
            raise BadInput(f"secrets: {told}", [("secrets", told)])

    def given(self, spec: bytes) -> dict[str, str]:
        """What goes with the assignment of this job, in base64. One that is gone is left out: its worker says so."""
        asked = msgspec.json.decode(spec, type=_Naming)
        opened = {}
        for text in asked.secrets:
            wanted = parse(text)
            key = None if wanted is None else self._find(asked.user_id, wanted.name)
            value = None if key is None else self._open(key)
            if wanted is not None and value is not None:
                opened[wanted.name] = base64.b64encode(value).decode()
        return opened

    def _find(self, user: str, name: str) -> str | None:
        """A user's own goes before everybody's."""
        return next((key for key in (_key(user, name), _key(FLEET, name)) if key in self._known), None)

    def _open(self, key: str) -> bytes | None:
        box = self._known[key].box
        try:
            return self._cipher().decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], key.encode())
        except (InvalidTag, OstlerError) as error:
            why = "it was sealed with another key" if isinstance(error, InvalidTag) else str(error)
            _log.error("the secret %s cannot be opened: %s", key.partition("@")[0], why)
            return None

    def _cipher(self, *, make: bool = False) -> ChaCha20Poly1305:
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            if not make or self._known:
                raise OstlerError(f"the key of the secrets is not there: bring {self._file} back") from None
            _write(self._file, secrets.token_hex(KEY_BYTES) + "\n")
            text = self._file.read_text()
        try:
            return ChaCha20Poly1305(bytes.fromhex(text.strip()))
        except ValueError:
            raise OstlerError(f"{self._file} is no key: it has {2 * KEY_BYTES} hexadecimal digits") from None


def _write(path: Path, text: str) -> None:
    """Whole or not at all, before anything is sealed with it, and not in the place of one that is there by now."""
    part = path.with_name(f".{path.name}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(part, path)
    part.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _key(owner: str, name: str) -> str:
    """A name has no '@'."""
    return f"{name}@{owner}"
