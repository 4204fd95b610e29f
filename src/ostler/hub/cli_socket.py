"""`GET /v1/ws/cli`: an operator's tools ask about workers over one socket. It answers; it never tells by itself."""

import math
from typing import Any

import msgspec
from starlette.websockets import WebSocket

from ostler.domain.errors import OstlerError
from ostler.hub.access import Caller
from ostler.hub.api.fleet import FleetApi
from ostler.hub.permissions import messages_of
from ostler.wire import messages, version_1
from ostler.wire.messages import MalformedFrame


class CliSocket:
    def __init__(self, fleet: FleetApi) -> None:
        self._fleet = fleet

    async def serve(self, socket: WebSocket) -> None:
        """One connection. A frame that cannot be answered is said back, and the connection stays."""
        caller: Caller = socket.scope["ostler.caller"]
        await socket.accept()
        while (received := await socket.receive())["type"] != "websocket.disconnect":
            data = received.get("text") or received.get("bytes") or b""
            for frame in messages.decode(data, messages_of(caller.role)):
                answer = await self._answer(frame, caller)
                await socket.send_text(answer.decode())

    async def _answer(self, frame: messages.Frame | MalformedFrame, caller: Caller) -> bytes:
        if isinstance(frame, MalformedFrame):
            return version_1.encode(messages.Ack(), str(frame))
        try:
            return version_1.encode(await self._found(frame.message, caller))
        except OstlerError as error:
            return version_1.encode(messages.Ack(of=frame.type), f"{frame.type}: {error}")

    async def _found(self, asked: messages.Message, caller: Caller) -> messages.Message:
        if isinstance(asked, messages.WorkerShowRequest):
            document = await self._fleet.worker_document(asked.worker_id, caller)
            jobs = msgspec.convert(document["jobs"], list[messages.JobSummary])
            return messages.WorkerShowResponse(worker=_info(document), jobs=jobs)
        assert isinstance(asked, messages.WorkerListRequest)
        found = await self._fleet.worker_documents(caller, asked.backend)
        return messages.WorkerListResponse(workers=[_info(document) for document in found])


def _info(document: dict[str, Any]) -> messages.WorkerInfo:
    return msgspec.convert({**document, "cpu_count": math.ceil(document["cpu_count"])}, messages.WorkerInfo)
