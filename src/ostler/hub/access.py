"""Who is calling: tokens, roles, and the files that a hub writes at its first start."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ostler.config import TOKEN_FILES
from ostler.domain.errors import BadInput, NotAuthenticated, NotFound
from ostler.domain.job import MANIFEST_USER
from ostler.domain.records import TokenRecord
from ostler.hub.ids import new_job_id, new_token_secret

ROLES = ("viewer", "user", "operator", "worker")
JOIN_ONCE = "join-once"
"""The role of a token that is exchanged, once, for the token of a worker; it opens nothing else."""
JOIN_ONCE_S = 24 * 3600.0
FILE_ROLES = {"admin": "operator", "join": "join"}
ANY_WORKER = ("", "worker")
"""What the user of a worker's token is called where it names no worker."""


class Caller(msgspec.Struct, frozen=True):
    role: str
    user: str
    token_id: str
    expires_at: float | None = None

    @property
    def sees_all(self) -> bool:
        return self.role in ("operator", "viewer")

    def may_see(self, user: str) -> bool:
        """What belongs to this user. The manifest's work is everybody's to look at."""
        return self.sees_all or user in (self.user, MANIFEST_USER)

    def may_speak_for(self, worker: str) -> bool:
        """A worker's own token serves that worker alone."""
        if self.role == "worker":
            return self.user in (*ANY_WORKER, worker)
        return self.role in ("join", "operator")


class Access:
    """Tokens by the hash of their secret; the secrets themselves are kept nowhere but in the two files."""

    def __init__(self, state: Path, tokens: list[TokenRecord], wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._by_digest = {token.digest: token for token in tokens}
        self._ended: dict[str, str] = {}
        """Why a token that this hub has known is one no more, by its digest."""
        self.changed: Callable[[], None] = lambda: None
        """A token was made, or taken out of use. Of one that expires nobody hears."""
        for kind, role in FILE_ROLES.items():
            secret = _own_secret(state / TOKEN_FILES[kind])
            record = TokenRecord(
                id=kind, role=role, user="admin" if kind == "admin" else "", digest=digest(secret), created_at=0
            )
            self._by_digest[record.digest] = record

    def caller(self, authorization: str) -> Caller | None:
        token = self._by_digest.get(_presented(authorization))
        if token is None or self._is_over(token):
            return None
        return Caller(token.role, token.user, token.id, token.expires_at)

    def of_roles(self, *roles: str) -> list[TokenRecord]:
        """The tokens that are good now."""
        return [token for token in self._by_digest.values() if token.role in roles and not self._is_over(token)]

    def refusal(self, authorization: str) -> str:
        """Why this opens nothing: of a token that once did, what became of it."""
        presented = _presented(authorization)
        token = self._by_digest.get(presented)
        if token is not None and self._is_over(token):
            return f"this token has expired; {_another(token)}"
        return self._ended.get(presented, "bring a valid token: `Authorization: Bearer TOKEN`")

    def create(self, role: str, user: str, expires_s: float | None = None) -> tuple[TokenRecord, str]:
        if role not in (*ROLES, JOIN_ONCE):
            raise BadInput(f"role: {role!r} is not one of {', '.join(ROLES)}", [("role", "unknown role")])
        if role == JOIN_ONCE and expires_s is None:
            expires_s = JOIN_ONCE_S
        secret, now = new_token_secret(), self._wall()
        record = TokenRecord(
            id=new_job_id(),
            role=role,
            user=user or role,
            digest=digest(secret),
            created_at=now,
            expires_at=None if expires_s is None else now + expires_s,
        )
        return record, secret

    def know(self, tokens: list[TokenRecord]) -> None:
        """These and the files' own, and no others: as another hub has written them."""
        files = [token for token in self._by_digest.values() if token.id in FILE_ROLES]
        found = [token for token in tokens if token.revoked_at is None]
        self._by_digest = {token.digest: token for token in (*found, *files)}

    def admit(self, record: TokenRecord) -> None:
        """Once it is durable."""
        self._by_digest[record.digest] = record
        self._ended.pop(record.digest, None)
        self.changed()

    def spend(self, caller: Caller) -> list[TokenRecord]:
        """Take a single-use token out of use, at once: whoever brought it too, at the same time, comes too late."""
        if caller.role != JOIN_ONCE:
            return []
        spent = self._find(caller.token_id)
        if spent is None or self._is_over(spent):
            raise NotAuthenticated(_USED)
        self.expel(spent, _USED)
        return [msgspec.structs.replace(spent, revoked_at=self._wall())]

    def of_worker(self, name: str) -> list[TokenRecord]:
        """The tokens that serve this worker alone, as revoked ones."""
        return [
            msgspec.structs.replace(record, revoked_at=self._wall())
            for record in self._by_digest.values()
            if record.role == "worker" and record.user == name and name not in ANY_WORKER
        ]

    def revoked(self, token_id: str) -> TokenRecord:
        record = self._find(token_id)
        if record is None or token_id in FILE_ROLES:
            raise NotFound(f"there is no token {token_id} that could be revoked")
        return msgspec.structs.replace(record, revoked_at=self._wall())

    def expel(self, record: TokenRecord, why: str = "") -> None:
        self._by_digest.pop(record.digest, None)
        self._ended[record.digest] = why or f"this token was revoked; {_another(record)}"
        self.changed()

    def _find(self, token_id: str) -> TokenRecord | None:
        return next((record for record in self._by_digest.values() if record.id == token_id), None)

    def _is_over(self, token: TokenRecord) -> bool:
        return token.expires_at is not None and token.expires_at <= self._wall()


_USED = "this token has been used, and is good for one machine; `ostler token create --join` makes another"


def _another(token: TokenRecord) -> str:
    wanted = "--join" if token.role == JOIN_ONCE else f"--role {token.role}"
    return f"`ostler token create {wanted}` on the hub makes another"


def _presented(authorization: str) -> str:
    """The digest of the secret in this header. What is looked up is the digest, so no time tells of the secret."""
    scheme, _, secret = authorization.partition(" ")
    return digest(secret.strip()) if scheme.lower() == "bearer" and secret else ""


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
