"""Which of the workers that may? Best fit, so that scarce things stay whole. Lower is better; the parts explain the
choice."""

from typing import TYPE_CHECKING

import msgspec

from ostler.core.room import Room
from ostler.domain.resources import Grant, Request

if TYPE_CHECKING:
    from ostler.core.fleet import Worker

PREFERRED_LABEL = 100.0
"""Each preferred label that holds. Larger than all else together: what the user prefers wins among those that fit."""
GPU_MACHINE = 10.0
"""Per GPU of a machine that a job without GPUs would sit on."""
WHOLE_GPU_LEFT = 1.0
"""Per device that stays wholly free: a fuller machine is preferred, so that empty ones stay whole."""
FRESH_GPU = 2.0
"""Breaking a device that nobody shares yet."""
VRAM_OVERSHOOT = 0.5
"""Times the part of the granted memory that was not asked for: small devices go first."""
CPU_LEFT = 0.2
MEMORY_LEFT = 0.1


class Score(msgspec.Struct, frozen=True):
    total: float
    parts: dict[str, float]

    def words(self) -> str:
        told = [f"{name} {value:+.2f}" for name, value in self.parts.items() if value]
        return ", ".join(told) or "nothing told it apart"


def score(request: Request, worker: "Worker", grant: Grant) -> Score:
    room = worker.room
    parts = {
        "cores left": CPU_LEFT * _left(room.cores_milli - request.cores_milli, room.offer.cores_milli),
        "memory left": MEMORY_LEFT * _left(room.memory_mib - request.memory_mib, room.offer.memory_mib),
    }
    if request.uses_gpu:
        parts |= _gpu_parts(request, room, grant)
    else:
        parts["GPUs beside it"] = GPU_MACHINE * len(room.offer.devices)
    held = sum(constraint.holds(room.offer.labels) for constraint in request.prefer)
    if held:
        parts["preferred labels"] = -PREFERRED_LABEL * held
    if request.prefers_cuda and grant.devices:
        parts["preferred CUDA"] = -PREFERRED_LABEL
    return Score(sum(parts.values()), parts)


def _gpu_parts(request: Request, room: Room, grant: Grant) -> dict[str, float]:
    places = [room.position[index] for index in grant.devices]
    fresh = sum(room.users[place] == 0 for place in places)
    parts = {"whole GPUs left": WHOLE_GPU_LEFT * (room.free_devices() - fresh)}
    if grant.share_mib:
        place = places[0]
        total = room.offer.devices[place].vram_mib
        parts["VRAM left on the device"] = VRAM_OVERSHOOT * _left(room.vram_mib[place] - grant.share_mib, total)
        parts["breaks a whole GPU"] = FRESH_GPU * fresh
    else:
        granted = sum(room.offer.devices[place].vram_mib for place in places)
        parts["VRAM not asked for"] = VRAM_OVERSHOOT * _left(granted - request.vram_mib, granted)
    return parts


def _left(left: int, total: int) -> float:
    return left / total if total else 0.0
