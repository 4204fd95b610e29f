"""Who may come in: tokens, and how a machine gets its own."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.config import TOKEN_FILES
from ostler.core.fleet import Fleet
from ostler.domain.errors import Conflict, NotFound
from ostler.domain.joining import invitation
from ostler.domain.names import worker_name
from ostler.domain.records import Changes, TokenRecord
from ostler.hub.access import ANY_WORKER, FILE_ROLES, JOIN_ONCE, Access, Caller
from ostler.hub.api.routes import caller_of, decode_body, json_response, read_body
from ostler.hub.connections import CONNECTION, Connections
from ostler.hub.documents import timestamp, worker_status
from ostler.hub.loop import Loop
from ostler.hub.sessions import Sessions

MAX_BYTES = 4096


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    user: Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")] = ""
    expires_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None


class NewWorker(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class EnrolApi:
    def __init__(self, loop: Loop, access: Access, sessions: Sessions, connections: Connections) -> None:
        self._loop = loop
        self._access = access
        self._sessions = sessions
        self._connections = connections
        self.fingerprint = ""
        """By which other machines know the hub before they tell it a secret; empty: they need none, or the system's."""
        self.renew_file: Callable[[str], None] = lambda kind: None
        """Write another secret into the file of this token."""

    async def tokens(self, request: Request) -> Response:
        rows = await self._loop.read(lambda ledger: ledger.token_list())
        return json_response({"tokens": [_token_document(row) for row in rows]})

    async def create_token(self, request: Request) -> Response:
        wanted = decode_body(await read_body(request, MAX_BYTES), NewToken)
        record, secret = self._access.create(wanted.role, wanted.user, wanted.expires_s)
        await self._loop.commit(Changes(tokens=[record]))
        self._access.admit(record)
        told = invitation(self.fingerprint, secret) if record.role == JOIN_ONCE else secret
        return json_response({**_token_document(record), "token": told}, 201)

    async def rotate_token(self, request: Request) -> Response:
        """Another secret in place of this one, which is good for a minute more. A worker gets its own over its own
        connection, and whoever asks for it does not see it; a file's is found in the file."""
        token_id = request.path_params["id"]
        if token_id in FILE_ROLES:
            return await self._rotate_file(token_id)
        old, new, secret = self._access.replacement(token_id)
        if old.role == "worker" and old.user not in ANY_WORKER:
            return await self._rotate_worker(old, new, secret)
        retired = self._access.retired(old)
        await self._loop.commit(Changes(tokens=[new, retired]))
        self._access.admit(retired)
        self._access.admit(new)
        self._access.replaced[old.id] = new.id
        return json_response({**_token_document(new), "token": secret, "replaces": _token_document(retired)})

    async def _rotate_file(self, kind: str) -> Response:
        self.renew_file(kind)
        for token_id, before in self._access.read_files():
            self._sessions.inherit(token_id, before)
            self._connections.inherit(token_id, before.token_id)
        await self._loop.commit(Changes())
        return json_response({"id": kind, "role": FILE_ROLES[kind], "file": TOKEN_FILES[kind]})

    async def _rotate_worker(self, old: TokenRecord, new: TokenRecord, secret: str) -> Response:
        """The old one is good until the worker has shown that it has the new one: it would be locked out otherwise."""
        if not self._sessions.is_here(old.user, old.id):
            raise Conflict(
                f"{old.user} is not connected with this token, and cannot be given another; when it is, ask again; or "
                "revoke this one and join the machine anew"
            )
        await self._loop.commit(Changes(tokens=[new]))
        self._access.admit(new)
        self._sessions.hand_token(old.user, old.id, secret)
        return json_response({**_token_document(new), "replaces": _token_document(old)}, 202)

    async def renewed(self, request: Request) -> Response:
        """A worker has kept the token with which it says so: those that it had before are good for a minute more, and
        what came in with them goes on."""
        caller = caller_of(request)
        name = _own_name(caller)
        older = [self._access.retired(one) for one in self._access.own_of(name) if one.id != caller.token_id]
        await self._loop.commit(Changes(tokens=older))
        for token in older:
            self._access.admit(token)
            self._sessions.inherit(token.id, caller)
            self._connections.inherit(token.id, caller.token_id)
        return json_response({"name": name})

    async def revoke_token(self, request: Request) -> Response:
        record = self._access.revoked(request.path_params["id"])
        await self._revoke(record, request)
        return json_response(_token_document(record))

    async def enrol(self, request: Request) -> Response:
        """A token of its own for a machine; the single-use one that it came with is spent by the same commit."""
        caller = caller_of(request)
        name = worker_name(decode_body(await read_body(request, MAX_BYTES), NewWorker).name)
        await self._refuse_a_taken_name(caller, name)
        spent = self._access.spend(caller)
        record, secret = self._access.create("worker", name)
        replaced = self._access.of_worker(name)
        try:
            await self._loop.commit(Changes(tokens=[*spent, *replaced, record]))
        except Exception:
            for token in spent:
                self._access.admit(msgspec.structs.replace(token, revoked_at=None))
            raise
        for token in replaced:
            self._expel(token, request)
        self._access.admit(record)
        return json_response({"token": secret, "name": name}, 201)

    async def seen(self, request: Request) -> Response:
        """How the hub sees the worker whose own token this is: enough to know that it has arrived."""
        name = _own_name(caller_of(request))

        def look(fleet: Fleet, now: float) -> dict[str, Any]:
            worker = fleet.workers.get(name)
            if worker is None:
                return {"name": name, "status": "unknown", "registered_at": None, "last_contact": None}
            return {
                "name": name,
                "status": worker_status(worker, now),
                "registered_at": timestamp(worker.registered_at or None),
                "last_contact": timestamp(worker.last_contact_at or None),
            }

        return json_response(await self._loop.look(look))

    async def leave(self, request: Request) -> Response:
        """A worker's own token is given back, by itself."""
        caller = caller_of(request)
        name = _own_name(caller)
        await self._revoke(self._access.revoked(caller.token_id), request)
        return json_response({"name": name})

    async def _refuse_a_taken_name(self, caller: Caller, name: str) -> None:
        """A machine that is connected keeps its name; one that is away may have been set up anew."""

        def is_connected(fleet: Fleet, _: float) -> bool:
            worker = fleet.workers.get(name)
            return worker is not None and worker.connected

        if caller.role == JOIN_ONCE and await self._loop.look(is_connected):
            raise Conflict(f"a worker named {name} is connected; give this machine another name (--name), or stop that")

    def expired(self, record: TokenRecord) -> None:
        """Its time is over: whoever came with it goes."""
        self._connections.cut(record.id)
        self._access.changed()

    async def _revoke(self, record: TokenRecord, request: Request) -> None:
        await self._loop.commit(Changes(tokens=[record]))
        self._expel(record, request)

    def _expel(self, record: TokenRecord, request: Request) -> None:
        self._access.expel(record)
        self._connections.cut(record.id, request.scope.get(CONNECTION))


def _own_name(caller: Caller) -> str:
    if caller.role != "worker" or caller.user in ANY_WORKER:
        raise NotFound("this token is no worker's own: it speaks for any")
    return caller.user


def _token_document(record: TokenRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "role": record.role,
        "user": record.user,
        "created_at": timestamp(record.created_at),
        "expires_at": timestamp(record.expires_at),
        "revoked_at": timestamp(record.revoked_at),
    }
