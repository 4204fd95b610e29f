"""Who is calling: tokens, roles, and the files that a hub writes at its first start."""

import contextlib
import hashlib
import heapq
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ostler.config import TOKEN_FILES
from ostler.domain.errors import BadInput, Conflict, NotAuthenticated, NotFound
from ostler.domain.job import MANIFEST_USER
from ostler.domain.records import TokenRecord
from ostler.hub.ids import new_job_id, new_token_secret
from ostler.hub.permissions import JOIN_ONCE as JOIN_ONCE
from ostler.hub.permissions import ROLES

SESSION_KEY = "session.key"
"""With it browsers' cookies are signed; it lies beside the tokens' files, for all hubs on one ledger."""
JOIN_ONCE_S, JOIN_ONCE_MOST_S = 15 * 60.0, 24 * 3600.0
GRACE_S = 60.0
"""How long a token that was replaced is good beside the one in its place."""
BEFORE = "-before"
"""After the name of a file's token: what stood there until it was replaced."""
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


def speaks_for_one(caller: Caller) -> bool:
    """A worker with a token of its own; the others may speak for any, and reach what any does."""
    return caller.role == "worker" and caller.user not in ANY_WORKER


class Access:
    """Tokens by the hash of their secret; the secrets themselves are kept nowhere but in the two files."""

    def __init__(self, state: Path, tokens: list[TokenRecord], wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._by_digest: dict[str, TokenRecord] = {}
        self._by_id: dict[str, TokenRecord] = {}
        self._ends: list[tuple[float, str]] = []
        """A heap: when tokens end that do, and their digests."""
        self._state = state
        for token in tokens:
            self._enter(token)
        self._ended: dict[str, str] = {}
        """Why a token that this hub has known is one no more, by its digest."""
        self.replaced: dict[str, str] = {}
        """Tokens that are good for a moment yet, and what took their place, by their ids."""
        self.changed: Callable[[], None] = lambda: None
        """A token was made, or taken out of use. Of one that expires nobody hears."""
        for kind, role in FILE_ROLES.items():
            self._enter(self._of_file(kind, role))
        self.session_key = _own_secret(state / SESSION_KEY).encode()

    def _enter(self, record: TokenRecord) -> None:
        self._by_digest[record.digest] = record
        self._by_id[record.id] = record
        if record.expires_at is not None:
            heapq.heappush(self._ends, (record.expires_at, record.digest))

    def _of_file(self, kind: str, role: str) -> TokenRecord:
        secret = _own_secret(self._state / TOKEN_FILES[kind])
        user = "admin" if kind == "admin" else ""
        return TokenRecord(id=kind, role=role, user=user, digest=digest(secret), created_at=0)

    def read_files(self) -> list[tuple[str, Caller]]:
        """The files' tokens as they stand there now. Of each that was replaced its id, and whoever has the one that
        stood there before: it is good for a while longer."""
        replaced = []
        for kind, role in FILE_ROLES.items():
            old, new = self._by_id[kind], self._of_file(kind, role)
            if old.digest != new.digest:
                before = msgspec.structs.replace(old, id=kind + BEFORE, expires_at=self._wall() + GRACE_S)
                self._enter(before)
                self._enter(new)
                replaced.append((kind, Caller(before.role, before.user, before.id, before.expires_at)))
        if replaced:
            self.changed()
        return replaced

    def expired(self) -> list[TokenRecord]:
        """Those whose time has come since this was last asked."""
        found = []
        while self._ends and self._ends[0][0] <= self._wall():
            token = self._by_digest.get(heapq.heappop(self._ends)[1])
            if token is not None and self._is_over(token):
                found.append(token)
        return found

    def caller(self, authorization: str) -> Caller | None:
        return self._as_caller(self._by_digest.get(_presented(authorization)))

    def of_id(self, token_id: str) -> Caller | None:
        """Whoever has this token, where it is good now; for what was given to its owner in its place."""
        return self._as_caller(self._by_id.get(token_id))

    def digest_of(self, token_id: str) -> str:
        token = self._by_id.get(token_id)
        return token.digest if token is not None else ""

    def _as_caller(self, token: TokenRecord | None) -> Caller | None:
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
        if role == JOIN_ONCE:
            expires_s = JOIN_ONCE_S if expires_s is None else expires_s
            if expires_s > JOIN_ONCE_MOST_S:
                raise BadInput("expires_s: a join token is good for 24 h at most", [("expires_s", "over 24 h")])
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
        files = [token for token in self._by_digest.values() if _is_of_file(token.id)]
        found = [token for token in tokens if token.revoked_at is None]
        self._by_digest, self._by_id, self._ends = {}, {}, []
        for token in (*found, *files):
            self._enter(token)

    def admit(self, record: TokenRecord) -> None:
        """Once it is durable."""
        self._enter(record)
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
        if record is None or _is_of_file(token_id):
            raise NotFound(f"there is no token {token_id} that could be revoked")
        return msgspec.structs.replace(record, revoked_at=self._wall())

    def replacement(self, token_id: str) -> tuple[TokenRecord, TokenRecord, str]:
        """A token that is good now, one for the same, and its secret. Where it expires, the new one lasts as long."""
        old = self._find(token_id)
        if old is None or self._is_over(old) or _is_of_file(token_id) or old.role == JOIN_ONCE:
            raise NotFound(f"there is no token {token_id} that could be replaced")
        if token_id in self.replaced:
            told = f"token {token_id} was replaced by {self.replaced[token_id]} a moment ago"
            raise Conflict(f"{told}: if that one's secret was lost, rotate it, or revoke it and make another")
        lasts_s = None if old.expires_at is None else old.expires_at - old.created_at
        return old, *self.create(old.role, old.user, lasts_s)

    def retired(self, record: TokenRecord) -> TokenRecord:
        """The same, for a little while yet."""
        end = self._wall() + GRACE_S
        return msgspec.structs.replace(record, expires_at=min(record.expires_at or end, end))

    def own_of(self, worker: str) -> list[TokenRecord]:
        """The tokens of this worker alone that are good now."""
        return [one for one in self.of_roles("worker") if one.user == worker and worker not in ANY_WORKER]

    def expel(self, record: TokenRecord, why: str = "") -> None:
        self._by_digest.pop(record.digest, None)
        self._by_id.pop(record.id, None)
        self.replaced.pop(record.id, None)
        self._ended[record.digest] = why or f"this token was revoked; {_another(record)}"
        self.changed()

    def _find(self, token_id: str) -> TokenRecord | None:
        return self._by_id.get(token_id)

    def _is_over(self, token: TokenRecord) -> bool:
        return token.expires_at is not None and token.expires_at <= self._wall()


def _is_of_file(token_id: str) -> bool:
    return token_id.removesuffix(BEFORE) in FILE_ROLES


_USED = "this token has been used, and is good for one machine; `ostler token create --join` makes another"


def _another(token: TokenRecord) -> str:
    wanted = "--join" if token.role == JOIN_ONCE else f"--role {token.role}"
    return f"`ostler token create {wanted}` on the hub makes another"


def _presented(authorization: str) -> str:
    """The digest of the secret in this header. What is looked up is the digest, so no time tells of the secret."""
    scheme, _, rest = authorization.partition(" ")
    secret = rest.strip()
    return digest(secret) if scheme.lower() == "bearer" and secret else ""


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _own_secret(path: Path) -> str:
    """Made at the first start, kept ever after, readable by the hub's own user alone."""
    with contextlib.suppress(FileNotFoundError):
        return _not_empty(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(new_token_secret() + "\n")
            file.flush()
            os.fsync(file.fileno())  # a file that a power cut left empty would be a secret that everybody knows
        with contextlib.suppress(FileExistsError):  # another hub on the same store was faster: its secret is ours
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
    return _not_empty(path)


def _not_empty(path: Path) -> str:
    secret = path.read_text().strip()
    if not secret:
        raise BadInput(f"{path} is empty, and no secret; remove it, and the hub makes another", [(path.name, "empty")])
    return secret
