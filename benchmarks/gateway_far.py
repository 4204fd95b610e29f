"""The parts that a model on another machine has beside the relay: its worker, which joins tunnels to the model's port,
and a hub that is busy with something else most of the time."""

import asyncio
import hashlib
import socket
import time
from typing import Any

import uvloop

from ostler.gateway.control import KeySetup, ModelSetup, NeedTunnel, Open, Setup, Way, frame, frames_to_hub
from ostler.tls import Trust
from ostler.worker.tunnel import Side, join, open_tunnel

WORKER = "benchmark-worker"
BUSY_S = 0.2


def busy_hub(link: socket.socket, model_port: int, secret: str, keys: Any) -> None:
    """Passes on which tunnels are wanted, and looks at its link only every so often."""
    known = [(secret, "user"), (WORKER, "worker")]
    setups = [KeySetup(hashlib.sha256(one.encode()).hexdigest(), "bench", role) for one, role in known]
    opening = Open("i1", "small", "127.0.0.1", model_port, None, Way(tunnel=True))
    link.sendall(frame([Setup({"small": ModelSetup()}, setups, 2**26), opening]))
    frames = frames_to_hub()
    while data := link.recv(2**20):
        for message in frames.feed(data):
            if isinstance(message, NeedTunnel):
                keys.send(message.key)
        time.sleep(BUSY_S)


def far_worker(keys: Any, gateway: str, model_port: int) -> None:
    """Opens each tunnel that it hears of, with the code that workers have for it."""

    async def serve(key: str) -> None:
        service = Side()
        await asyncio.get_running_loop().create_connection(lambda: service, "127.0.0.1", model_port)
        await join(service, await open_tunnel(gateway, key, {"Authorization": f"Bearer {WORKER}"}, Trust()))

    async def run() -> None:
        tasks: set[asyncio.Task[None]] = set()

        def wanted() -> None:
            while keys.poll():
                task = asyncio.get_running_loop().create_task(serve(keys.recv()))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        asyncio.get_running_loop().add_reader(keys.fileno(), wanted)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
