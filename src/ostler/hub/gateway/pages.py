"""What the gateway answers about itself, on its own port and on the hub's: the models, the queue, loads and unloads."""

import asyncio
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.domain.errors import NotAllowed, NotFound, OstlerError
from ostler.gateway import control
from ostler.hub.api.routes import json_response
from ostler.hub.documents import Document
from ostler.hub.gateway.gateway import Gateway
from ostler.hub.gateway.instances import READY, Instance
from ostler.hub.logs import Logs

_encode = msgspec.json.Encoder().encode
JSON = [("Content-Type", "application/json")]
TEXT = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-cache")]
OPERATING = ("operator", "user")


class Pages:
    """On the gateway's own port."""

    def __init__(self, gateway: Gateway, logs: Logs) -> None:
        self._gateway = gateway
        self._logs = logs
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
                await self._stream_log("/".join(path[2:]), key)
                return
            status, document = 200, await self._page(asked, path)
        except OstlerError as error:
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
                return {"running": [_running(one) for one in self._gateway.instances.by_job.values()]}
            case ("GET", "api", "queue"):
                return {"queue": queue(self._gateway)}
            case ("POST", "api", "models", "unload") | ("GET", "unload"):
                must_operate(asked.role)
                return {"unloaded": await self._gateway.unload([])}
            case ("POST", "api", "models", *names, "unload"):
                must_operate(asked.role)
                return {"unloaded": await self._gateway.unload([self._known(names)])}
            case ("POST", "api", "models", *names, "load"):
                must_operate(asked.role)
                name = self._known(names)
                self._gateway.preload([name])
                return {"loading": [name]}
            case _:
                raise NotFound(f"there is no {asked.method} {asked.path} here")

    def _known(self, names: list[str]) -> str:
        return known(self._gateway, "/".join(names))

    async def _stream_log(self, model: str, key: tuple[int, int]) -> None:
        """Of the model's process, from its beginning, for as long as that runs."""
        instance = self._gateway.instances.current.get(known(self._gateway, model))
        if instance is None or not instance.attempt:
            raise NotFound(f"{model!r} is not running; its last process is among `ostler jobs`")
        request = key[1]
        self._say(key, control.Answer(request, 200, TEXT, b"", more=True))
        async for data in self._logs.read(instance.job_id, instance.attempt, 0, follow=True):
            self._say(key, control.Answer(request, 200, body=data, more=True))
        self._say(key, control.Answer(request, 200))


class ModelsApi:
    """The same on the hub's port, for the command line and the dashboard."""

    def __init__(self, gateway: Gateway | None) -> None:
        self._gateway = gateway

    async def listing(self, request: Request) -> Response:
        gateway = self._gateway
        models = [] if gateway is None else [_model(gateway, name) for name in gateway.settings.models]
        return json_response({"models": models, "next": None})

    async def load(self, request: Request) -> Response:
        gateway, name = self._asked(request)
        gateway.preload([name])
        return json_response(_model(gateway, name))

    async def unload(self, request: Request) -> Response:
        gateway, name = self._asked(request)
        await gateway.unload([name])
        return json_response(_model(gateway, name))

    async def pin(self, request: Request) -> Response:
        gateway, name = self._asked(request)
        gateway.pin(name, True)
        return json_response(_model(gateway, name))

    async def unpin(self, request: Request) -> Response:
        gateway, name = self._asked(request)
        gateway.pin(name, False)
        return json_response(_model(gateway, name))

    def _asked(self, request: Request) -> tuple[Gateway, str]:
        if self._gateway is None:
            raise NotFound("this hub has no models; name some under [models] in its ostler.toml")
        return self._gateway, known(self._gateway, request.path_params["name"])


def known(gateway: Gateway, name: str) -> str:
    found = gateway.names.get(name)
    if found is None:
        raise NotFound(f"there is no model {name!r}")
    return found


def queue(gateway: Gateway) -> list[Document]:
    places = gateway.scheduler.places(gateway.now())
    return [{**msgspec.to_builtins(place), "why": gateway.why(place.request, place.model)} for place in places]


def _running(instance: Instance) -> Document:
    return {
        "model": instance.model,
        "state": instance.phase,
        "worker": instance.worker,
        "job_id": instance.job_id,
        "in_flight": instance.in_flight,
    }


def _model(gateway: Gateway, name: str) -> Document:
    instance = gateway.instances.current.get(name)
    now = gateway.now()
    queued = sum(place.model == name for place in gateway.scheduler.places(now))
    recipe = gateway.settings.models[name]
    return {
        "name": name,
        "state": "stopped" if instance is None else instance.phase,
        "worker": instance.worker or None if instance else None,
        "job_id": instance.job_id if instance else None,
        "in_flight": instance.in_flight if instance else 0,
        "queued": queued,
        "served": instance.served if instance else 0,
        "idle_s": round(now - instance.last_use, 3) if instance and instance.phase == READY else None,
        "load_s": round(instance.ready - instance.began, 3) if instance and instance.ready and instance.began else None,
        "vram_gb": recipe.vram_gb,
        "pinned": gateway.is_pinned(name),
        "error": gateway.errors.get(name),
    }


def must_operate(role: str) -> None:
    if role not in OPERATING:
        raise NotAllowed("this key may call models, and no more; loading and unloading takes a user's token")
