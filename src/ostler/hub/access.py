"""Who is calling: tokens, roles, and the files that a hub writes at its first start."""

import hashlib
import hmac
import os
import time
from pathlib import Path

import msgspec

from ostler.config import TOKEN_FILES
from ostler.domain.errors import BadInput, NotFound
from ostler.domain.records import TokenRecord
from ostler.hub.ids import new_job_id, new_token_secret

ROLES = ("viewer", "user", "operator", "worker")
FILE_ROLES = {"admin": "operator", "join": "join"}


class Caller(msgspec.Struct, frozen=True):
    role: str
    user: str
    token_id: str

    @property
    def sees_all(self) -> bool:
        return self.role in ("operator", "viewer")


class Access:
    """Tokens by the hash of their secret; the secrets themselves are kept nowhere but in the two files."""

    def __init__(self, state: Path, tokens: list[TokenRecord]) -> None:
        self._by_digest = {token.digest: token for token in tokens}
        for kind, role in FILE_ROLES.items():
            secret = _own_secret(state / TOKEN_FILES[kind])
            record = TokenRecord(
                id=kind, role=role, user="admin" if kind == "admin" else "", digest=digest(secret), created_at=0
            )
            self._by_digest[record.digest] = record

    def caller(self, authorization: str) -> Caller | None:
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() != "bearer" or not secret:
            return None
        presented = digest(secret.strip())
        token = self._by_digest.get(presented)
        if token is None or not hmac.compare_digest(token.digest, presented):
            return None
        return Caller(token.role, token.user, token.id)

    def create(self, role: str, user: str) -> tuple[TokenRecord, str]:
        if role not in ROLES:
            raise BadInput(f"role: {role!r} is not one of {', '.join(ROLES)}", [("role", "unknown role")])
        secret = new_token_secret()
        record = TokenRecord(
            id=new_job_id(), role=role, user=user or role, digest=digest(secret), created_at=time.time()
        )
        return record, secret

    def admit(self, record: TokenRecord) -> None:
        """Once it is durable."""
        self._by_digest[record.digest] = record

    def revoked(self, token_id: str) -> TokenRecord:
        for record in self._by_digest.values():
            if record.id == token_id and token_id not in FILE_ROLES:
                return msgspec.structs.replace(record, revoked_at=time.time())
        raise NotFound(f"there is no token {token_id} that could be revoked")

    def expel(self, record: TokenRecord) -> None:
        self._by_digest.pop(record.digest, None)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _own_secret(path: Path) -> str:
    """Made at the first start, kept ever after, readable by the hub's own user alone."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        secret = new_token_secret()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")
        return secret
