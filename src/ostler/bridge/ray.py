"""A Ray cluster, by its head's job API over HTTP: each task is the entrypoint of a Ray job, held to one node.

Function calls are tasks of Ray's instead, where that is to be had (`bridge/ray_calls.py`).
"""

import asyncio
import math
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ostler.bridge.base import Ask, Fate, Node, Phase, Refusal, Sight, Signal, Submission, Unanswered
from ostler.bridge.ray_calls import LOOK_S, Call, Calls
from ostler.bridge.ray_head import Document, Head, last_line
from ostler.domain.errors import NotAllowed, NotFound

PREFIX = "ostler"
OF_NODE, HELD_TO = "node:", 0.001
"""Of the resource that each node has one of, under its own address: enough to be placed there and nowhere else."""
KEPT_S = 3600.0
"""Ray remembers every job that there ever was; ours are removed this long after their end."""
NOT_ALLOWED = (401, 403)
_PHASES: dict[str, Phase] = {"PENDING": "waiting", "RUNNING": "running"}
_TYPE = "accelerator_type:"
_USED = re.compile(r"([\d.]+)([A-Za-z]*)/[\d.]+[A-Za-z]* (\w+)")
_UNITS = {"": 1.0, "B": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "TiB": 1024.0**4}
_NEVER_STARTED = re.compile("failed to (start|be scheduled)|not.*scheduled", re.IGNORECASE)


class Ray:
    """`bridge` is a name that no other bridge to this cluster has."""

    name = "Ray"

    def __init__(self, address: str, *, bridge: str, folder: Path, token: str = "", python: str = "python") -> None:
        """`folder` is one that the nodes share, `python` the cluster's own."""
        self._head = Head(address, token)
        self._mark = f"{PREFIX}-{bridge}-"
        self._calls = Calls(self._head, folder, f"{PREFIX}-calls-{bridge}-", python, self._submit)

    @property
    def hurry_s(self) -> float:
        return LOOK_S if self._calls.hurry else math.inf

    async def open(self) -> None:
        status, told = await self._head.ask("GET", "/api/version")
        at = self._head.address
        if status in NOT_ALLOWED:
            raise NotAllowed(f"Ray at {at} lets nobody in without a token; bring its own by --ray-token")
        if status != 200 or not isinstance(told, dict) or "ray_version" not in told:
            raise NotFound(f"{at} is no Ray head with a dashboard; `ray start --head` prints its address")
        await asyncio.to_thread(self._calls.load)

    async def nodes(self) -> list[Node]:
        told = await self._head.get("/nodes?view=summary")
        found = nodes(told["data"])
        give_back(found, self._calls.in_doubt())
        return found

    async def submit(self, jobs: Sequence[Submission]) -> dict[str, str | Refusal]:
        calls = {job.attempt: self._call(job) for job in jobs if job.call and self._calls.takes}
        await self._calls.submit(calls)
        answers: dict[str, str | Refusal] = {attempt: call.name for attempt, call in calls.items()}
        for job in jobs:
            if job.attempt not in calls:
                try:
                    answer = await self._submit(self._call(job))
                except Unanswered:
                    return answers
                if answer is not None:
                    answers[job.attempt] = answer
        return answers

    async def _submit(self, call: Call) -> str | Refusal | None:
        """As a Ray job: its id, or why it was not taken. None: there was no answer to that."""
        asking = {
            "entrypoint": f"/bin/sh {shlex.quote(call.script)}",
            "submission_id": call.name,
            "metadata": {"ostler.task": call.task},
            "entrypoint_num_cpus": call.num_cpus,
            "entrypoint_num_gpus": call.num_gpus,
            "entrypoint_memory": call.memory,
            "entrypoint_resources": call.resources,
        }
        status, told = await self._head.ask("POST", "/api/jobs/", asking)
        if status == 200 or "already exists" in str(told):
            return call.name
        return Refusal(last_line(told), lasting=status == 400) if status < 500 else None

    def _call(self, job: Submission) -> Call:
        ask: Ask = job.ask
        return Call(
            script=str(job.script),
            name=self._mark + job.attempt,
            task=job.task_id,
            num_cpus=ask.cores,
            num_gpus=ask.gpus,
            memory=ask.memory_mib * 1024 * 1024,
            resources={OF_NODE + ask.node: HELD_TO},
        )

    async def look(self, jobs: Collection[str]) -> dict[str, Sight]:
        calls, others = self._parted(jobs)
        found: dict[str, Sight] = {}
        if calls:
            found |= {self._mark + name: one for name, one in (await self._calls.look(calls)).items()}
        if others:
            found |= {name: sight(told) for name, told in (await self._known(self._mark)).items() if name in others}
        return found

    def _parted(self, jobs: Collection[str]) -> tuple[list[str], set[str]]:
        """Attempts that are calls, and jobs."""
        calls = [name for job in jobs if (name := job.removeprefix(self._mark)) in self._calls]
        return calls, set(jobs) - {self._mark + name for name in calls}

    async def _known(self, *marks: str) -> dict[str, Document]:
        told = await self._head.get("/api/jobs/")
        return {name: job for job in told if (name := job.get("submission_id") or "").startswith(marks)}

    async def stop(self, jobs: Collection[str], signal: Signal) -> None:
        """Ray has one way to end a job, with a grace of its own."""
        calls, others = self._parted(jobs)
        if calls:
            await self._calls.stop(calls, signal)
        for job in others:
            await self._head.ask("POST", f"/api/jobs/{job}/stop")

    async def adopt(self) -> dict[str, dict[str, Sight]]:
        known = await self._known(self._mark, self._calls.prefix)
        old = [name for name, job in known.items() if 0 < (job.get("end_time") or 0) < (time.time() - KEPT_S) * 1000]
        for name in old:
            await self._head.ask("DELETE", f"/api/jobs/{name}")
        jobs = [name for name in known if name not in old and name.startswith(self._mark)]
        found = {name.removeprefix(self._mark): {name: sight(known[name])} for name in jobs}
        return found | {name: {self._mark + name: one} for name, one in (await self._calls.adopt()).items()}


def sight(job: Mapping[str, Any]) -> Sight:
    status, message = str(job.get("status")), str(job.get("message") or "")
    if status in _PHASES:
        return Sight(phase=_PHASES[status], reason="waiting for resources" if status == "PENDING" else "")
    fate: Fate = "exited"
    if status == "STOPPED":
        fate = "cancelled"
    elif _NEVER_STARTED.search(message):
        fate = "handed back"
    code = 0 if status == "SUCCEEDED" else job.get("driver_exit_code")
    return Sight(phase="over", reason=f"{status}: {message}"[:200], fate=fate, exit_code=_shell_code(code))


def _shell_code(code: int | None) -> int | None:
    """Ray tells of signals as Python does, below zero."""
    return 128 - code if code is not None and code < 0 else code


def nodes(data: Mapping[str, Any]) -> list[Node]:
    """Of `/nodes?view=summary`: those that are alive."""
    used = data.get("nodeLogicalResources") or {}
    raylets = [one.get("raylet") or {} for one in data.get("summary") or ()]
    return [_node(one, str(used.get(one["nodeId"]) or "")) for one in raylets if one.get("state") == "ALIVE"]


def give_back(of: Sequence[Node], calls: Sequence[Call]) -> None:
    """What these take is not somebody else's. Too much of it is no harm: what does not fit waits in Ray's queue."""
    known = {f"{OF_NODE}{node.name}": node for node in of}
    for call in calls:
        for node in (known[name] for name in call.resources if name in known):
            node.free_cores = min(node.cores, node.free_cores + call.num_cpus)
            node.free_gpus = min(node.gpus, node.free_gpus + call.num_gpus)
            node.free_mib = min(node.memory_mib, node.free_mib + (call.memory >> 20))


def _node(raylet: Mapping[str, Any], used: str) -> Node:
    has = raylet.get("resourcesTotal") or {}
    taken = {name: float(amount) * _UNITS.get(unit, 1.0) for amount, unit, name in _USED.findall(used)}
    address = str(raylet["nodeManagerAddress"])
    gpu_type = next((name.removeprefix(_TYPE) for name in has if name.startswith(_TYPE)), "")
    cores, gpus, memory = int(has.get("CPU", 0)), int(has.get("GPU", 0)), int(has.get("memory", 0))
    return Node(
        name=address,
        address=address,
        cores=cores,
        free_cores=max(0, int(cores - taken.get("CPU", 0.0))),
        memory_mib=memory >> 20,
        free_mib=max(0, int(memory - taken.get("memory", 0.0))) >> 20,
        gpus=gpus,
        free_gpus=max(0, int(gpus - taken.get("GPU", 0.0))),
        gpu_type=gpu_type,
        labels={"ray.head": "yes"} if raylet.get("isHeadNode") else {},
    )
