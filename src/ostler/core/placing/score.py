"""Which of the workers that may? The one whose room is worth least less afterwards; among equals the best fit, so that
scarce things stay whole. The parts explain the choice; lower is better."""

from typing import TYPE_CHECKING, Final, NamedTuple

from ostler.core.holding import Grant
from ostler.core.placing.worth import SCALE, WHOLE, Kind, Need, Worth, free_parts, in_steps, machine_of, need_on
from ostler.core.room import Room, pick_devices
from ostler.domain.resources import Request

if TYPE_CHECKING:
    from ostler.core.fleet import Worker

PREFERRED: Final = 100.0
"""Each preferred label that holds. Larger than all else together: what the user prefers wins among those that fit."""
GPU_BESIDE: Final = 10.0
"""Per GPU of a machine that a job without GPUs would sit on."""
GIB_BEYOND: Final = 0.01
"""Per GiB of each GPU that was not asked for: small devices go first."""
CPU_LEFT: Final = 0.2
MEMORY_LEFT: Final = 0.1


class Score:
    __slots__ = ("alone", "parts")

    def __init__(self, parts: dict[str, float], alone: bool = False) -> None:
        self.parts = parts
        self.alone = alone
        """No other worker was open to it at that moment."""

    def words(self) -> str:
        told = ["no other open worker had capacity for it then"] if self.alone else []
        told += [f"{name} {value:+.2f}" for name, value in self.parts.items() if value]
        return ", ".join(told) or "nothing told it apart"


class Loss(NamedTuple):
    """What a task would take of the worth of a machine's room."""

    change: int
    pressure: int
    part: int = 0
    """Of a share: how much is free, before, of the device that it would get."""

    @property
    def steps(self) -> int:
        return -in_steps(self.change - self.pressure)


NO_LOSS: Final = Loss(0, 0)


def need_of(request: Request, kind: Kind) -> Need:
    return need_on(request, kind) or Need(request.cores_milli, 0, 0)


def loss(worth: Worth, request: Request, room: Room) -> Loss:
    machine = machine_of(room.offer)
    if machine is None:
        return NO_LOSS
    kind, need, free = machine.kind, need_of(request, machine.kind), free_parts(room)
    cores = room.cores_milli - need.cores_milli
    before = worth.of(kind, room.cores_milli, free)
    pressure = worth.pressure.get(kind, 0) * need.gpus * need.part
    best: tuple[int, int] | None = None
    # The fuller device wins a tie.
    for part in sorted({one for one in free if one >= need.part}) if 0 < need.part < WHOLE else [WHOLE]:
        after = worth.of(kind, cores, taken(free, need, part)) - before
        if best is None or after > best[0]:
            best = (after, part)
    # The free parts are rounded: what fits by a hair may seem not to.
    change, part = best or (-WHOLE * SCALE, 0)
    return Loss(change, pressure, part if 0 < need.part < WHOLE else 0)


def taken(free: tuple[int, ...], need: Need, part: int) -> list[int]:
    """What is left of the devices when a need is met by the first that have this part free."""
    left, rest = need.gpus, []
    for one in free:
        is_taken = left > 0 and one == part
        left -= is_taken
        rest.append(one - need.part if is_taken else one)
    return rest


def granted(request: Request, room: Room, part: int) -> Grant:
    """The devices that it gets; of a share, the first one with this part free."""
    if part:
        for place, one in enumerate(free_parts(room)):
            need = request.share_mib(room.offer.devices[place])
            if one == part and 0 < need <= room.free_vram(place):
                return Grant((room.offer.devices[place].index,), need)
    grant = pick_devices(request, room)
    assert grant is not None
    return grant


def leftover(request: Request, room: Room) -> float:
    """Between machines whose room loses as little: the best fit."""
    machine = machine_of(room.offer)
    if machine is None:
        cores = CPU_LEFT * _part(room.cores_milli - request.cores_milli, room.offer.cores_milli)
        return cores + MEMORY_LEFT * _part(room.memory_mib - request.memory_mib, room.offer.memory_mib)
    if not request.uses_gpu:
        return GPU_BESIDE * machine.gpus
    beyond = machine.kind.vram_mib - request.vram_mib // (request.gpu_count or 1)
    return 0.0 if request.shares_gpu else GIB_BEYOND * beyond / 1024


def explained(request: Request, worker: "Worker", found: Loss) -> Score:
    parts = {
        "GPU room lost to others": -found.change / SCALE / WHOLE,
        "GPUs that others insist on": found.pressure / SCALE / WHOLE,
        "best fit": leftover(request, worker.room),
    }
    return Score(parts | preferred(request, worker))


def preferred(request: Request, worker: "Worker") -> dict[str, float]:
    parts = {}
    if request.prefer:
        held = sum(constraint.holds(worker.offer.labels) for constraint in request.prefer)
        if held:
            parts["preferred labels"] = -PREFERRED * held
    if request.prefers_cuda and worker.offer.has_cuda:
        parts["preferred CUDA"] = -PREFERRED
    return parts


def _part(left: int, total: int) -> float:
    return left / total if total > 0 else 0.0
