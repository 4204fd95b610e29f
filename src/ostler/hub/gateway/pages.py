"""What the gateway answers about itself, on its own port and on the hub's: the models, the queue, loads and unloads."""

import asyncio
import functools
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.domain.errors import NotAllowed, NotFound, OstlerError
from ostler.domain.finite import encode as _encode
from ostler.gateway import control
from ostler.hub.access import Caller
from ostler.hub.api.routes import caller_of, json_response
from ostler.hub.documents import Document
from ostler.hub.gateway.following import ConfigFile
from ostler.hub.gateway.gateway import Gateway
from ostler.hub.gateway.instances import READY, Instance
from ostler.hub.logs import Logs

JSON = [("Content-Type", "application/json")]
TEXT = [
    ("Content-Type", "text/plain; charset=utf-8"),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
]
MISTAKEN = "it has mistakes, of which operators are told"
"""A mistake may quote a secret."""
OPERATING = ("operator", "user")
SOURCE = "gateway"
"""Where it came from, as far as the hub is told."""
SHOWN_BYTES = 1024 * 1024
"""Of a log that is there already. Nothing slows the hub down, and who has more than so much unread is let go."""


class Pages:
    """On the gateway's own port."""

    def __init__(self, gateway: Gateway, logs: Logs) -> None:
        self._gateway = gateway
        self._logs = logs
        self.audit = gateway.audit
        self._errands: dict[tuple[int, int], asyncio.Task[None]] = {}
        """By the relay that asked, and its number of the request."""
        gateway.pages = self.asked
        gateway.page_left = self.left

    def asked(self, asked: control.Asked) -> None:
        key = (self._gateway.link.generation, asked.request)
        task = asyncio.get_running_loop().create_task(self._answer(asked, key))
        self._errands[key] = task
        task.add_done_callback(lambda _: self._errands.pop(key, None))

    def left(self, request: int) -> None:
        task = self._errands.get((self._gateway.link.generation, request))
        if task is not None:
            task.cancel()

    async def _answer(self, asked: control.Asked, key: tuple[int, int]) -> None:
        path = [unquote(part) for part in asked.path.strip("/").split("/")]
        try:
            if asked.method == "GET" and path[:2] == ["logs", "stream"]:
                must_operate(asked.role)
                await self._stream_log("/".join(path[2:]), key)
                return
            status, document = 200, await self._page(asked, path)
        except OstlerError as error:
            if isinstance(error, NotAllowed):
                self.audit.refused(_caller(asked), f"{asked.method} {asked.path}", str(error), SOURCE)
            kind = "not_found_error" if error.status == 404 else "invalid_request_error"
            status = error.status
            document = {"error": {"message": str(error), "type": kind, "param": None, "code": error.title}}
        self._say(key, control.Answer(asked.request, status, JSON, _encode(document)))

    def _say(self, key: tuple[int, int], answer: control.Answer) -> None:
        """Unless who asked has gone with its relay: the next one counts anew."""
        if key[0] == self._gateway.link.generation:
            self._gateway.link.say(answer)

    async def _page(self, asked: control.Asked, path: list[str]) -> Any:
        match (asked.method, *path):
            case ("GET", "running"):
                return {"running": [_running(self._gateway, one) for one in self._gateway.instances.by_job.values()]}
            case ("GET", "api", "queue"):
                return {"queue": queue(self._gateway)}
            case ("GET", "api", "activity"):
                return {"activity": self._gateway.activity.listing(None if sees_all(asked.role) else asked.user)}
            case ("POST", "api", "models", "unload") | ("GET", "unload"):
                must_operate(asked.role)
                self.audit.note(_caller(asked), "model.unload", "model/*", SOURCE)
                return {"unloaded": await self._gateway.unload([])}
            case ("POST", "api", "models", *names, "unload"):
                return await self._unload(asked, names)
            case ("POST", "api", "models", *names, "load"):
                must_operate(asked.role)
                name = self._known(names)
                self.audit.note(_caller(asked), "model.load", f"model/{name}", SOURCE)
                self._gateway.load(name)
                return {"loading": [name]}
            case ("POST", "api", "models", "unload", *names):  # llama-swap's spelling
                return await self._unload(asked, names)
            case _:
                raise NotFound(f"there is no {asked.method} {asked.path} here")

    async def _unload(self, asked: control.Asked, names: list[str]) -> Document:
        must_operate(asked.role)
        name = self._known(names)
        self.audit.note(_caller(asked), "model.unload", f"model/{name}", SOURCE)
        return {"unloaded": await self._gateway.unload([name])}

    def _known(self, names: list[str]) -> str:
        return known(self._gateway, "/".join(names))

    async def _stream_log(self, model: str, key: tuple[int, int]) -> None:
        """Of the model's process: what it said last, and what it says for as long as it runs."""
        instance = self._gateway.instances.foremost(known(self._gateway, model))
        if instance is None or not instance.attempt:
            raise NotFound(f"{model!r} is not running; its last process is among `ostler jobs`")
        request, size = key[1], self._logs.store.size(instance.attempt)
        self._say(key, control.Answer(request, 200, TEXT, b"", more=True))
        async for data in self._logs.read(instance.job_id, instance.attempt, max(0, size - SHOWN_BYTES), True):
            self._say(key, control.Answer(request, 200, body=data, more=True))
        self._say(key, control.Answer(request, 200))


class ModelsApi:
    """The same on the hub's port, for the command line and the dashboard."""

    def __init__(self, gateway: Gateway, config: ConfigFile) -> None:
        self._gateway = gateway
        self._config = config

    async def listing(self, request: Request) -> Response:
        models = [_model(self._gateway, name) for name in self._gateway.settings.models]
        config = self._config.document()
        if not sees_all(caller_of(request).role):
            config = {**config, "error": config["error"] and MISTAKEN, "notes": []}
        return json_response({"models": models, "next": None, "config": config})

    async def reload(self, request: Request) -> Response:
        return json_response(self._config.reload())

    async def activity(self, request: Request) -> Response:
        caller = caller_of(request)
        user = None if caller.sees_all else caller.user
        return json_response({"activity": self._gateway.activity.listing(user), "next": None})

    async def load(self, request: Request) -> Response:
        gateway, name = self._asked(request)
        gateway.load(name)
        return json_response(_model(gateway, name))

    async def unload(self, request: Request) -> Response:
        gateway, name = self._asked(request)
        await gateway.unload([name])
        return json_response(_model(gateway, name))

    async def pin(self, request: Request) -> Response:
        gateway, name = self._asked(request)
        await gateway.pin(name, True)
        return json_response(_model(gateway, name))

    async def unpin(self, request: Request) -> Response:
        gateway, name = self._asked(request)
        await gateway.pin(name, False)
        return json_response(_model(gateway, name))

    def _asked(self, request: Request) -> tuple[Gateway, str]:
        if not self._gateway.settings.models:
            raise NotFound("this hub has no models; name some under [models] in its ostler.toml")
        return self._gateway, known(self._gateway, request.path_params["name"])


def known(gateway: Gateway, name: str) -> str:
    found = gateway.names.get(name)
    if found is None:
        raise NotFound(f"there is no model {name!r}")
    return found


def queue(gateway: Gateway) -> list[Document]:
    places = gateway.scheduler.places(gateway.now())
    jobs = functools.cache(gateway.jobs_in_the_way)  # many wait for few models
    return [{**msgspec.to_builtins(place), "why": gateway.why(place.request, jobs(place.model))} for place in places]


def _running(gateway: Gateway, instance: Instance) -> Document:
    return {
        "model": instance.model,
        "state": gateway.state_of(instance),
        "worker": instance.worker,
        "job_id": instance.job_id,
        "in_flight": instance.in_flight,
    }


def _model(gateway: Gateway, name: str) -> Document:
    instances = gateway.instances.of(name)
    first, now = next(iter(instances), None), gateway.now()
    idle = [now - one.last_use for one in instances if one.phase == READY]
    waiting = [place.request for place in gateway.scheduler.places(now) if place.model == name]
    return {
        "name": name,
        "aliases": gateway.settings.models[name].aliases,
        "state": "stopped" if first is None else gateway.state_of(first),
        "worker": first.worker or None if first else None,
        "job_id": first.job_id if first else None,
        "in_flight": sum(one.in_flight for one in instances),
        "queued": len(waiting),
        "waits_for": gateway.why(waiting[0], gateway.jobs_in_the_way(name)) if waiting else None,
        "served": sum(one.served for one in instances),
        "idle_s": round(min(idle), 3) if idle else None,
        "load_s": _load_s(first) if first else None,
        **gateway.counts.swaps(name),
        **_sizes(gateway, name),
        "pinned": gateway.memory.is_pinned(gateway.settings.models[name]),
        "error": gateway.errors.get(name),
        "instances": [{**_running(gateway, one), "load_s": _load_s(one)} for one in instances],
    }


def _load_s(instance: Instance) -> float | None:
    return round(instance.ready - instance.began, 3) if instance.ready and instance.began else None


def _sizes(gateway: Gateway, name: str) -> Document:
    """What its next process is given, and which of it was learnt."""
    recipe = gateway.settings.models[name]
    needs = recipe.needs(gateway.memory.seen(recipe))
    differ = {"vram": needs.vram_gb != (recipe.vram_gb or 0.0), "memory": needs.memory_gb != (recipe.memory_gb or 0.0)}
    return {**needs._asdict(), "learnt": [what for what, differs in differ.items() if differs]}


def sees_all(role: str) -> bool:
    return role == "operator"


def _caller(asked: control.Asked) -> Caller:
    """The relay knows the user of a key, and not its id."""
    return Caller(asked.role, asked.user, "")


def must_operate(role: str) -> None:
    if role not in OPERATING:
        raise NotAllowed("this key may call models, and no more; loading, unloading and logs take a user's token")
