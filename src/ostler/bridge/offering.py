"""What a node offers the fleet: what is free of it by the batch system's account, and what our own jobs have. Pure.

The hub takes off what it has placed there. What others hold is not in the offer, so that what fits can begin.
"""

from collections.abc import Collection, Sequence

import msgspec

from ostler.bridge.base import Node
from ostler.bridge.record import Record
from ostler.domain.worker import Capabilities, DeviceInfo

OTHERS = "held by another job of the cluster"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator says of the nodes, and the batch system cannot."""

    backend: str = "nvidia"
    vram_gb: float = 0.0
    """Of each GPU."""
    labels: dict[str, str] = {}
    python: str = ""
    """Of the interpreter that runs functions there: the bridge's own."""
    in_line: bool = False
    """Offer all that there is: what others hold is waited for in the batch system's queue."""


class Amounts(msgspec.Struct, frozen=True):
    """Free, and ours."""

    cores: float
    slots: int
    memory_mib: int
    gpus: int


def seen(node: Node, ours: Collection[Record], *, closed: bool, in_line: bool) -> Amounts:
    """`ours` are those that have begun: the batch system counts them, and so does the hub."""
    whole = Amounts(node.cores, node.cores, node.memory_mib, node.gpus)
    if in_line and not closed:
        return whole
    free = Amounts(0, 0, 0, 0) if closed else Amounts(node.free_cores, node.free_cores, node.free_mib, node.free_gpus)
    return Amounts(
        cores=min(whole.cores, free.cores + sum(one.cores for one in ours)),
        slots=min(whole.slots, free.slots + len(ours)),
        memory_mib=min(whole.memory_mib, free.memory_mib + sum(one.asked_mib for one in ours)),
        gpus=min(whole.gpus, free.gpus + sum(len(one.devices) for one in ours)),
    )


def steadied(current: Amounts, before: Amounts, now: Amounts) -> Amounts:
    """Two looks in a row move it, as far as both agree: jobs and nodes are not looked at in the same moment, and what
    began or ended between the two would be counted twice, or not at all."""

    def move(name: str) -> float:
        ours, one, other = getattr(current, name), getattr(before, name), getattr(now, name)
        return float(min(max(ours, min(one, other)), max(one, other)))

    return Amounts(move("cores"), int(move("slots")), int(move("memory_mib")), int(move("gpus")))


def capabilities(node: Node, amounts: Amounts, held: Sequence[Record], terms: Terms, closed: str) -> Capabilities:
    """`held` are all of ours there, begun or not."""
    kept = {index for one in held for index in one.devices}
    spare = max(0, amounts.gpus - sum(len(one.devices) for one in held))
    why = closed or OTHERS
    devices = []
    for index in range(node.gpus):
        usable = index in kept or spare > 0
        spare -= usable and index not in kept
        devices.append(
            DeviceInfo(index=index, name=node.gpu_type, vram_gb=terms.vram_gb, quarantine="" if usable else why)
        )
    return Capabilities(
        gpu_backend=terms.backend if node.gpus else "cpu",
        gpu_count=node.gpus,
        gpu_type=node.gpu_type,
        vram_gb=terms.vram_gb * node.gpus,
        cpu_count=amounts.cores,
        memory_gb=amounts.memory_mib / 1024,
        hostname=node.name,
        address=node.address or node.name,
        devices=devices,
        labels={**node.labels, **terms.labels},
        os="linux",
        arch=node.arch,
        python=terms.python,
    )


class Offer:
    """One node's, look after look."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._before: Amounts | None = None
        self._current: Amounts | None = None

    def look(
        self, node: Node, begun: Collection[Record], held: Sequence[Record], resting: str
    ) -> tuple[Capabilities, int]:
        """What is to be offered now, and how many tasks at once. `resting`: why nothing more is taken for a while."""
        closed = node.closed or resting
        now = seen(node, begun, closed=bool(closed), in_line=self._terms.in_line)
        if closed or self._current is None or self._before is None:
            self._current = now
        else:
            self._current = steadied(self._current, self._before, now)
        self._before = now
        slots = 0 if closed else self._current.slots  # what ours leave there is not to be filled again
        return capabilities(node, self._current, held, self._terms, closed), slots
