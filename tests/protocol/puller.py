"""A machine that only claims, as anybody could write one: plain HTTP and JSON."""

import hashlib
import io
import tarfile
from typing import Any

from tests.protocol.api import Answer, Api
from tests.protocol.hub import RunningHub

MANIFEST = """
[defaults]
command = ["train", "--model", "{model}", "{hyper...}", "--out", "{out}"]

[[jobs]]
model = "gbt"
mode = "realistic"
hyper = { depth = 6 }

[[sweeps]]
name = "mlp-{lr}-{width}"
model = "mlp"
metric = "accuracy"
grid = { lr = [0.1, 0.01], width = [64, 128] }
"""


def capability(**other: Any) -> dict[str, Any]:
    return {
        "cuda_available": False,
        "cuda_devices": [],
        "ram_available_gib": 8.0,
        "ram_total_gib": 16.0,
        "cpu_cores": 4,
        **other,
    }


def cuda(*devices: tuple[float, float], **other: Any) -> dict[str, Any]:
    """(total, free) of each, in GiB."""
    listed = [{"name": "RTX", "vram_total_gib": total, "vram_free_gib": free} for total, free in devices]
    return capability(cuda_available=True, cuda_devices=listed, **other)


class Puller:
    def __init__(self, hub: RunningHub, hostname: str, token: str = "") -> None:
        self.hostname = hostname
        self.api: Api = hub.caller(token or hub.join_token)

    async def ask(self, **offer: Any) -> Answer:
        body = {"hostname": self.hostname, "capability": offer.pop("said", None) or capability(**offer)}
        return await self.api.call("POST", "/v1/job/claim", json=body)

    async def claim(self, **offer: Any) -> dict[str, Any]:
        answer = await self.ask(**offer)
        assert answer.status == 200, (answer.status, answer.headers.get("Ostler-Reason"), answer.body)
        found: dict[str, Any] = answer.json()
        return found

    async def why_not(self, **offer: Any) -> str:
        answer = await self.ask(**offer)
        assert (answer.status, answer.body) == (204, b"")
        return str(answer.headers["Ostler-Reason"])

    async def say(self, job_id: str, word: str, **more: Any) -> Answer:
        return await self.api.call("POST", f"/v1/job/{job_id}/{word}", json={"hostname": self.hostname, **more})

    async def beat(self, job_id: str, **more: Any) -> bool:
        answer = await self.say(job_id, "heartbeat", **more)
        assert answer.status == 200, answer
        return bool(answer.json()["cancel"])

    async def upload(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        answer = await self.api.call("PUT", f"/v1/model/{sha256}", data=data)
        assert answer.status in (200, 201), answer
        return sha256


def bundle(**files: bytes) -> bytes:
    """A plain tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name.replace("_", "."))
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


async def apply(api: Api, text: str = MANIFEST, query: str = "") -> Answer:
    return await api.call("PUT", f"/v1/manifest{query}", data=text.encode())


def counts(answer: Answer) -> tuple[int, int, int, int]:
    """Inserted, unchanged, updated, absent."""
    assert answer.status == 200, answer
    found = answer.json()
    return found["inserted"], found["unchanged"], found["updated"], found["absent"]
