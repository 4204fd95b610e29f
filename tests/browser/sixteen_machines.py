"""A fleet to look at: sixteen machines that are connections and nothing else, with work that is always the same."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.model_workers import Crowd, ModelWorker
from tests.process_fleet import ProcessFleet

from ostler.client.http import Hub

A100, RTX = ("A100", 80.0), ("RTX 4090", 24.0)
MACHINES: list[tuple[str, int, tuple[str, float], float, float]] = [
    *[(f"dgx-{number}", 8, A100, 128.0, 1024.0) for number in range(1, 5)],
    *[(f"rig-{number}", 4, A100, 64.0, 512.0) for number in range(1, 5)],
    *[(f"ws-{number}", 1, RTX, 16.0, 64.0) for number in range(1, 6)],
    *[(f"sbc-{number}", 0, ("", 0.0), 4.0, 8.0) for number in range(1, 4)],
]
JOBS: list[dict[str, Any]] = [
    {"name": "pretrain-1b", "gpu_count": 8, "gpu_type": "A100", "min_cpu_cores": 96, "min_memory_gb": 512},
    {"name": "pretrain-3b", "gpu_count": 8, "gpu_type": "A100", "min_cpu_cores": 112, "min_memory_gb": 768},
    {"name": "finetune-mlp", "gpu_count": 4, "gpu_type": "A100", "min_cpu_cores": 32, "min_memory_gb": 256},
    *[{"name": f"sweep-{n}", "gpu_count": 1, "gpu_type": "A100", "min_cpu_cores": 8} for n in range(7)],
    *[{"name": f"evaluate-{n}", "min_vram_gb": 30, "gpu_type": "A100", "min_cpu_cores": 4} for n in range(3)],
    *[{"name": f"render-{n}", "gpu_count": 1, "gpu_type": "RTX 4090", "min_memory_gb": 24} for n in range(3)],
    *[{"name": f"collect-{n}", "min_cpu_cores": 2, "min_memory_gb": 4, "denied_hosts": ["sbc-3"]} for n in range(4)],
    *[{"name": f"too-large-{n}", "gpu_count": 16, "gpu_type": "A100"} for n in range(2)],
]


def machine(crowd: Crowd, name: str, gpus: int, kind: tuple[str, float], cores: float, memory: float) -> ModelWorker:
    made = ModelWorker(crowd, name, slots=max(2, gpus))
    devices = [
        {"index": index, "uuid": f"GPU-{name}-{index}", "name": kind[0], "vram_gb": kind[1]} for index in range(gpus)
    ]
    made.capabilities |= {"gpu_count": gpus, "gpu_type": kind[0], "vram_gb": gpus * kind[1], "devices": devices}
    made.capabilities |= {"gpu_backend": "nvidia" if gpus else "cpu", "cpu_count": cores, "memory_gb": memory}
    made.capabilities["labels"] = {"room": "cellar" if name.startswith("dgx") else "lab"}
    return made


class SixteenMachines:
    def __init__(self, fleet: ProcessFleet) -> None:
        self._fleet = fleet
        self._ready = threading.Event()
        self._over = asyncio.Event()
        self._loop = asyncio.new_event_loop()

    async def _live(self) -> None:
        token = (self._fleet.state / "join.token").read_text().strip()
        crowd = Crowd("127.0.0.1", self._fleet.port, token, 0)
        crowd.workers = [machine(crowd, *one) for one in MACHINES]
        crowd.start()
        beating = asyncio.create_task(crowd.beat())
        await crowd.all_registered(60)
        self._ready.set()
        await self._over.wait()
        beating.cancel()
        crowd.leave()

    def _run(self) -> None:
        self._loop.run_until_complete(self._live())

    @contextmanager
    def run(self) -> Iterator[Hub]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            assert self._ready.wait(60), "the machines have not come"
            with Hub(self._fleet.url, (self._fleet.state / "admin.token").read_text().strip()) as client:
                client.submit([{"command": ["train"], **job} for job in JOBS])
                yield client
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            thread.join(60)
            self._loop.close()
