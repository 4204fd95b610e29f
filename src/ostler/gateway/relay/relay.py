"""The relay: sends each request where it belongs, and does what the hub says. An open gate is all it decides by."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ostler.domain.finite import encode
from ostler.gateway.control import (
    Abort,
    Answer,
    Close,
    Done,
    Drained,
    Gone,
    Grant,
    NoTunnel,
    Open,
    Refuse,
    Setup,
    Stop,
    Tell,
    ToRelay,
    Way,
    Worked,
)
from ostler.gateway.relay.answers import CORS, SWITCHING, Refusal
from ostler.gateway.relay.body import Spool
from ostler.gateway.relay.caller import STOPPING, Caller
from ostler.gateway.relay.catalog import Catalog, Key, Model
from ostler.gateway.relay.connecting import Connecting
from ostler.gateway.relay.exchange import Exchange
from ostler.gateway.relay.fields import NotReadable, named, rewritten
from ostler.gateway.relay.heads import Heads
from ostler.gateway.relay.inquiry import MAX_BODY_BYTES, Inquiry
from ostler.gateway.relay.instances import Instance
from ostler.gateway.relay.limits import Limits
from ostler.gateway.relay.request import (
    HEALTH,
    MODELS,
    TUNNEL,
    TUNNELS,
    WITH_BODY,
    Head,
    Request,
    bad_request,
    too_large,
    upstream_candidates,
)
from ostler.gateway.relay.writes import Writes

USED_EVERY_S = 0.1
WORKED_EVERY_S = 10.0
NO_KEY = Refusal(
    401,
    "invalid_api_key",
    "show a token as `Authorization: Bearer …` or `x-api-key: …`; this one is missing or unknown",
)
NO_KEY_ANY_MORE = Refusal(401, "invalid_api_key", "this token was revoked, or has expired; show another")
TUNNELS_ONLY = Refusal(403, "permission_denied", "a worker's token opens tunnels, and nothing else here")
NOT_OURS = Refusal(
    403,
    "permission_denied",
    "the gateway is not called so, or is called by a page of somebody else's; its operator adds names by `hosts`, and "
    "origins of pages by `cors_origins` under [gateway], in ostler.toml",
)
NO_TUNNELS = Refusal(403, "permission_denied", "tunnels are opened by workers; this token is none of a worker's")
NOT_A_TUNNEL = Refusal(426, "upgrade_required", "a tunnel is asked for with `Upgrade: ostler-tunnel`")
NOBODY_WAITS = Refusal(404, "not_found", "nobody waits for this tunnel: its key is wrong, was used, or comes too late")
HUB_GONE = "the hub that would have it opened is gone"


class Relay:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, send: Callable[..., None], limits: Limits, folder: Path | None = None
    ) -> None:
        self.loop = loop
        self.send = send
        self.limits = limits
        self.spool = Spool(limits, folder)
        self.heads: Heads[Head] = Heads(limits.known_heads)
        self.writes = Writes(loop, limits.few)
        self.catalog = Catalog()
        self.connecting = Connecting(send, limits.connect_s)
        self.callers: set[Caller] = set()
        self.instances: dict[str, Instance] = {}
        self.requests: dict[int, Exchange | Inquiry] = {}
        """Those that the hub knows of."""
        self.linked = True
        """The hub is there."""
        self.stopping = False
        self.on_setup: Callable[[], None] = lambda: None
        self.on_stop: Callable[[float], None] = lambda drain_s: None
        self.on_empty: Callable[[], object] = lambda: None
        self.ids = itertools.count(1)
        self._used: set[Instance] = set()
        self._ended: list[Done] = []
        self._telling = False
        self._working: set[Instance] = set()
        """Those that have worked since the last word about it."""
        self._told: dict[type, Callable[[Any], None]] = {
            Setup: self._configure,
            Open: self._open,
            Close: self._close,
            Gone: self._gone,
            Grant: self._grant,
            NoTunnel: self._no_tunnel,
            Refuse: self._refuse,
            Tell: self._tell,
            Abort: self._abort,
            Answer: self._answer,
            Stop: self._stop,
        }

    # Requests

    def look_at_head(self, request: Request, local: str) -> Refusal | None:
        """Who calls, before anything else; then whether the rest of the request is worth reading."""
        head, catalog = request.head, self.catalog
        request.key_version = catalog.version
        if head.approved_in == catalog.version and head.approved_at == local:
            request.key, request.cors, fault = head.key, head.cors, None
        else:
            if (refusal := self._who_calls(request)) is not None:
                return refusal
            fault = self._fault_of(request, local)
        if fault is None and request.length > catalog.max_body_bytes:
            fault = too_large(catalog.max_body_bytes)
        if fault is not None:
            # Whoever wrote this may see another end of it than we do: nothing that follows is read.
            request.persistent = False
        return fault if fault is not None or not self.stopping else STOPPING

    def _who_calls(self, request: Request) -> Refusal | None:
        head = request.head
        if head.origin is not None and self.catalog.welcomes(head.origin):
            request.cors = CORS % head.origin.encode("latin-1")
        if head.path == HEALTH or (request.cors and request.is_preflight):
            return None
        key = request.key = self.catalog.key_of(head.bearer, head.api_key)
        if key is None:
            return NO_KEY
        return TUNNELS_ONLY if key.is_worker and not head.path.startswith(TUNNELS) else None

    def _fault_of(self, request: Request, local: str) -> Refusal | None:
        """A head without a fault is looked at again only when the configuration has changed."""
        head = request.head
        if head.fault is not None:
            return head.fault
        origin = None if request.cors else head.origin
        if head.hosts and not self.catalog.is_called_rightly(head.host, origin, local):
            return NOT_OURS
        head.key, head.cors, head.approved_in, head.approved_at = request.key, request.cors, self.catalog.version, local
        return None

    def begin(self, caller: Caller, request: Request) -> None:
        key, changed = request.key, request.key_version != self.catalog.version
        if changed and key is not None and self.catalog.key_of(request.head.bearer, request.head.api_key) is not key:
            request.persistent = False
            caller.refuse(request, NO_KEY_ANY_MORE)  # it went while the body came
        elif key is None or not request.head.for_model:
            self._for_us(caller, request, key)
        elif key.limit is not None and key.in_flight >= key.limit:
            message = f"this key may have {key.limit} requests at a time; wait until one has ended"
            caller.refuse(request, Refusal(429, "too_many_requests", message, None, 1))
        else:
            self._for_model(caller, request, key)

    def _for_us(self, caller: Caller, request: Request, key: Key | None) -> None:
        path = request.head.path
        if request.is_preflight:
            self._answer_with(caller, request, request.preflight_page)
        elif path == HEALTH:
            self._page(caller, request, b'{"status":"ok"}')
        elif key is None:
            caller.refuse(request, NO_KEY)
        elif path.startswith(TUNNELS):
            self._tunnel(caller, request, key)
        elif path.startswith(MODELS):
            self._models(caller, request)
        elif request.body.size > MAX_BODY_BYTES:
            caller.refuse(request, too_large(MAX_BODY_BYTES))
        else:
            caller.answering = Inquiry(self, caller, request, key)

    def _for_model(self, caller: Caller, request: Request, key: Key) -> None:
        stream = False
        try:
            if request.head.path.startswith(b"/upstream/"):
                model = self._upstream(request)
            elif request.form is not None:
                model = self._in_form(request)
            elif request.body.size:
                model, stream = self._in_json(request)
            elif name := request.model_in_query():
                model = self._model(name)
                if model.setup.upstream_name:
                    request.model_in_query_becomes(model.setup.upstream_name)
            else:
                raise _Refused(_nothing_named(request))
        except _Refused as refused:
            caller.refuse(request, refused.refusal)
            return
        except _Moved:
            query = b"?" + request.head.query if request.head.query else b""
            self._page(caller, request, b"", 308, b"Location: %b/%b\r\n" % (request.head.path, query))
            return
        except NotReadable as error:
            caller.refuse(request, bad_request(str(error), "model"))
            return
        exchange = Exchange(self, caller, request, model, key)
        exchange.stream = stream
        caller.answering = exchange
        exchange.start()

    def _model(self, name: str) -> Model:
        model = self.catalog.names.get(name)
        if model is None:
            message = f"there is no model {name!r}; GET /v1/models lists those there are"
            raise _Refused(Refusal(404, "model_not_found", message, "model"))
        return model

    def _in_json(self, request: Request) -> tuple[Model, bool]:
        body = request.body.contents()
        found = named(body)
        model = self._model(found.model)
        if model.rewrites:
            request.body.replace(rewritten(body, model.setup))
        return model, bool(found.stream)

    def _in_form(self, request: Request) -> Model:
        form = request.form
        if form is None or form.value is None:
            raise _Refused(bad_request("the form has no field `model`", "model"))
        model = self._model(form.value.decode(errors="replace").strip())
        if model.setup.upstream_name:
            request.body.splice(form.start, form.end, model.setup.upstream_name.encode())
        return model

    def _upstream(self, request: Request) -> Model:
        head = request.head
        for name, rest in upstream_candidates(head.path):
            if name in self.catalog.names:
                if not rest and not head.upgrades:
                    raise _Moved  # what its pages name beside themselves would be looked for in the wrong place
                query = b"?" + head.query if head.query else b""
                request.target = (rest or b"/") + query
                return self.catalog.names[name]
        first = head.path.decode("latin-1").split("/")[2]
        return self._model(first)

    def _models(self, caller: Caller, request: Request) -> None:
        path = request.head.path
        if request.head.method not in (b"GET", b"HEAD"):
            caller.refuse(request, Refusal(405, "method_not_allowed", "models are listed by GET"))
        elif path == MODELS:
            self._page(caller, request, self.catalog.page())
        else:
            name = upstream_candidates(b"/upstream/" + path[len(MODELS) + 1 :])[0][0]
            try:
                self._page(caller, request, encode(self._model(name).document()))
            except _Refused as refused:
                caller.refuse(request, refused.refusal)

    def _tunnel(self, caller: Caller, request: Request, key: Key) -> None:
        """A connection to an instance, opened by the worker that runs it."""
        name = request.head.path[len(TUNNELS) :].decode("latin-1")
        if not key.is_worker:
            caller.refuse(request, NO_TUNNELS)
        elif not request.head.upgrades:
            caller.refuse(request, NOT_A_TUNNEL)
        elif not self.connecting.awaits(name, key.user):
            caller.refuse(request, NOBODY_WAITS)
        else:
            caller.write(SWITCHING % (request.answer_lines, TUNNEL))
            caller.hand_over(self.connecting.came(name, caller.transport, key.user), request.rest)

    def _page(self, caller: Caller, request: Request, body: bytes, status: int = 200, more_lines: bytes = b"") -> None:
        self._answer_with(caller, request, lambda: request.page(status, body, more_lines))

    def _answer_with(self, caller: Caller, request: Request, page: Callable[[], bytes]) -> None:
        request.persistent = request.persistent and not self.stopping
        caller.write(page())
        request.body.close()
        caller.answered()

    # Instances

    def released(self, exchange: Exchange, instance: Instance, done: Done) -> None:
        """A request has left its instance."""
        instance.exchanges.discard(exchange)
        self.writes.under_way -= 1
        instance.served += 1
        if done.asked or done.gave_back or exchange.model.waiting:
            if instance.told:  # this one may be among those that the hub has heard of
                self._used.add(instance)
            self.tell_use()
            self.send(done)
        else:
            self._ended.append(done)
            self.used(instance)
            if instance.watched and not instance.exchanges:
                self.tell_use()
        if instance.closing:
            self._drained(instance)

    def used(self, instance: Instance) -> None:
        """Without asking: the hub hears of it soon, together with what else there is to tell."""
        self._used.add(instance)
        if not self._telling:
            self._telling = True
            self.loop.call_later(USED_EVERY_S, self._tell_use_in_time)

    def _tell_use_in_time(self) -> None:
        self._telling = False
        self.tell_use()

    def tell_use(self) -> None:
        if self._used or self._ended:
            self.send(*self._ended, *(one.use() for one in self._used))
        self._ended.clear()
        self._used.clear()

    def works(self, instance: Instance) -> None:
        """The hub hears for whom, once in a while."""
        if not self._working:
            self.loop.call_later(WORKED_EVERY_S, self.tell_work)
        self._working.add(instance)
        instance.works = True

    def tell_work(self) -> None:
        worked, self._working = self._working, set()
        for instance in worked:
            instance.works = False
            self._tell_work_of(instance)
            if instance.exchanges:
                self.works(instance)

    def _tell_work_of(self, instance: Instance, *, last: bool = False) -> None:
        seconds = instance.work()
        if seconds or last:
            self.send(Worked(instance.id, seconds, last))

    def _drained(self, instance: Instance) -> None:
        if instance.closing and not instance.exchanges:
            self._tell_work_of(instance)
            instance.closing = False
            instance.let_go_of_idle()
            self.tell_use()
            self.send(Drained(instance.id))

    def _instance(self, name: str, host: str, port: int, way: Way) -> Instance:
        instance = self.instances.get(name)
        if instance is not None and (instance.host, instance.port, instance.way) != (host, port, way):
            self._gone(Gone(name))
            instance = None
        if instance is None:
            instance = self.instances[name] = Instance(name, host, port, way, self.connecting, self.limits)
        return instance

    # What the hub says

    def told(self, message: ToRelay) -> None:
        self._told[type(message)](message)

    def _configure(self, message: Setup) -> None:
        gone = self.catalog.configure(message)
        if gone:
            self._expel(gone)
        self.on_setup()

    def _expel(self, gone: set[Key]) -> None:
        """Whoever came with a key that is good no more, and the tunnels of workers that have none left."""
        for caller in list(self.callers):
            if caller.key in gone:
                caller.expel(NO_KEY_ANY_MORE)
        left = {key.user for key in gone if key.is_worker} - self.catalog.workers()
        for instance in list(self.instances.values()) if left else ():
            for upstream in instance.connections():
                if upstream.opened_by in left:
                    upstream.transport.abort()

    def _open(self, message: Open) -> None:
        model = self.catalog.models.get(message.model)
        if model is not None:
            instance = self._instance(message.instance, message.host, message.port, message.way)
            instance.open(model, message.concurrency, watched=message.watched)
            self.catalog.changed()

    def _close(self, message: Close) -> None:
        instance = self.instances.get(message.instance)
        if instance is None:
            self.tell_use()
            self.send(Drained(message.instance))
            return
        instance.shut()
        instance.closing = True
        instance.unloaded = message.unloaded
        self.catalog.changed()
        if instance.exchanges:  # the hub took it for idle
            self._used.add(instance)
            self.tell_use()
        self._drained(instance)

    def _gone(self, message: Gone) -> None:
        instance = self.instances.pop(message.instance, None)
        if instance is not None:
            instance.gone()
            self.catalog.changed()
            for exchange in list(instance.exchanges):
                exchange.gone()
            self._tell_work_of(instance, last=True)

    def _grant(self, message: Grant) -> None:
        exchange = self.requests.get(message.request)
        if isinstance(exchange, Exchange) and exchange.waiting:
            exchange.serve(self._instance(message.instance, message.host, message.port, message.way))

    def _no_tunnel(self, message: NoTunnel) -> None:
        self.connecting.will_not_come(message.key, message.reason)

    def _refuse(self, message: Refuse) -> None:
        request = self.requests.get(message.request)
        if request is not None:
            request.refuse(Refusal(message.status, message.code, message.message, None, message.retry_after_s))

    def _tell(self, message: Tell) -> None:
        exchange = self.requests.get(message.request)
        if isinstance(exchange, Exchange):
            exchange.tell(message.text)

    def _abort(self, message: Abort) -> None:
        request = self.requests.get(message.request)
        if request is not None:
            request.cut(Refusal(503, "aborted", "the request was ended by the gateway"))

    def _answer(self, message: Answer) -> None:
        inquiry = self.requests.get(message.request)
        if isinstance(inquiry, Inquiry):
            inquiry.answer(message)

    def _stop(self, message: Stop) -> None:
        self.on_stop(message.drain_s)

    # Time

    def look(self) -> None:
        """Every now and then: callers that take too long."""
        now = self.loop.time()
        for caller in list(self.callers):
            caller.look(now)

    def left(self, caller: Caller) -> None:
        self.callers.discard(caller)
        if self.stopping and not self.callers:
            self.on_empty()

    def hub_is_lost(self) -> None:
        """Nobody decides any more: who waits is told, who is served may end."""
        self.linked = False
        self.connecting.none_will_come(HUB_GONE)
        for request in list(self.requests.values()):
            if isinstance(request, Inquiry) or request.waiting:
                request.cut(STOPPING)

    def let_nobody_in(self) -> None:
        self.stopping = True
        for caller in list(self.callers):
            caller.stop()

    def cut_everything(self) -> None:
        """The time to end by itself is over."""
        for request in list(self.requests.values()):
            request.cut(STOPPING)
        for instance in list(self.instances.values()):
            for exchange in list(instance.exchanges):
                exchange.cut(STOPPING)


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class _Moved(Exception):
    """The model's own pages are in its folder, of which this is the name without its slash."""


def _nothing_named(request: Request) -> Refusal:
    if request.head.method in WITH_BODY:
        return bad_request("the request names no model: send a JSON object with a field `model`", "model")
    path = request.head.path.decode("latin-1")
    return Refusal(404, "not_found", f"there is nothing at {path}; a model is named by ?model=… or in the body")
