"""May this worker run this task? One predicate, with reasons; the scheduler, `why` and check() all ask it."""

from typing import TYPE_CHECKING, NamedTuple

from ostler.core.room import Room, pick_devices
from ostler.domain.quantities import show_cores, show_mib
from ostler.domain.resources import Offer, Request

if TYPE_CHECKING:
    from ostler.core.fleet import Worker


class Reason(NamedTuple):
    axis: str
    text: str
    lasting: bool = False
    """It would hold even if nothing ran on the worker."""


def unmet(request: Request, worker: "Worker", now: float) -> list[Reason]:
    """Every reason why this worker cannot be given this request now; empty: it can."""
    return unmet_health(worker, now) + _unmet_needs(request, worker)


def unmet_by_claim(request: Request, worker: "Worker", now: float) -> list[Reason]:
    """The same for a worker that only claims, while it asks."""
    return unmet_trust(worker, now) + _unmet_needs(request, worker)


def _unmet_needs(request: Request, worker: "Worker") -> list[Reason]:
    reasons = unmet_static(request, worker.id, worker.offer) + unmet_room(request, worker.id, worker.room)
    if worker.free_slots(request.pool) < 1:
        reasons.append(Reason("slots", _slots_text(request.pool, worker), _has_no_slots(request.pool, worker)))
    return reasons


def never_fits(request: Request, worker: "Worker") -> list[Reason]:
    """The reasons that would hold even if nothing ran on this worker."""
    reasons = never_offered(request, worker.id, worker.offer)
    if _has_no_slots(request.pool, worker):
        reasons.append(Reason("slots", _slots_text(request.pool, worker), True))
    return reasons


def never_offered(request: Request, name: str, offer: Offer) -> list[Reason]:
    best = offer.at_best()
    lasting = [reason for reason in unmet_static(request, name, best) if reason.lasting]
    return lasting + unmet_room(request, name, Room(best))


def _has_no_slots(pool: str, worker: "Worker") -> bool:
    return worker.slots is not None and worker.slots.total(pool) == 0


def unmet_health(worker: "Worker", now: float) -> list[Reason]:
    if worker.only_claims:
        return [Reason("claim", f"{worker.id} takes work only when it asks for it")]
    if not worker.connected:
        return [Reason("health", f"{worker.id} is offline")]
    return unmet_trust(worker, now)


def unmet_trust(worker: "Worker", now: float) -> list[Reason]:
    if worker.draining or worker.leaving:
        return [Reason("health", f"{worker.id} is draining and takes nothing new")]
    if worker.cooling:
        left = max(0.0, worker.cooling_until - now)
        return [Reason("health", f"{worker.id} cools down for {left:.0f} s after {worker.faults} failures of its own")]
    return []


def unmet_static(request: Request, name: str, offer: Offer) -> list[Reason]:
    """Backend, GPU type, labels and what the manifest says of hosts: what no ending of a task changes."""
    reasons = _unmet_hosts(request, name, offer)
    if request.backend and request.backend != offer.backend:
        what = f"needs backend {request.backend}; {name} has {offer.backend}"
        what += " (no CUDA)" if request.backend == "nvidia" else ""
        reasons.append(Reason("backend", what, True))
    if request.cuda_first_s and not offer.has_cuda:
        what = f"prefers CUDA until it has waited {request.cuda_first_s:.0f} s; {name} has none (no CUDA)"
        reasons.append(Reason("preference", what))
    if request.attended and offer.claims:
        what = f"needs a worker that holds a connection; {name} only claims plain commands"
        reasons.append(Reason("claim", what, True))
    if request.extended and offer.is_plain:
        needs = "needs a worker for models, functions, secrets, outputs or a stop without contact"
        what = f"{needs}; {name} speaks version 1 of the worker protocol, which knows none of them"
        reasons.append(Reason("protocol", what, True))
    if not request.accepts_type(offer.gpu_type, offer.gpu_names):
        longer = f" ({', '.join(offer.gpu_names)})" if offer.gpu_names else ""
        have = f"has {offer.gpu_type}{longer}" if offer.gpu_type else "has no GPU of a known type"
        wanted = request.gpu_type.replace("|", " or ")
        reasons.append(Reason("gpu_type", f"needs GPU type {wanted}; {name} {have}", True))
    for constraint in request.labels:
        if not constraint.holds(offer.labels):
            label = constraint.label
            said = f"has {label} = {offer.labels[label]}" if label in offer.labels else f"has no label {label}"
            reasons.append(Reason("labels", f"needs {constraint}; {name} {said}", True))
    return reasons


def _unmet_hosts(request: Request, name: str, offer: Offer) -> list[Reason]:
    reasons = []
    names = (name, offer.hostname)
    if offer.allow_jobs and request.model not in offer.allow_jobs:
        what = f"{name} trains only {', '.join(offer.allow_jobs)} (whitelist); this is {_model(request)}"
        reasons.append(Reason("host", what, True))
    if request.model in offer.deny_jobs:
        reasons.append(Reason("host", f"{name} does not train {request.model} (denied)", True))
    if request.allowed_hosts and not any(host in request.allowed_hosts for host in names):
        what = f"may run only on {', '.join(request.allowed_hosts)}; {name} is not among them (whitelist)"
        reasons.append(Reason("host", what, True))
    if any(host in request.denied_hosts for host in names):
        reasons.append(Reason("host", f"may not run on {name} (denied)", True))
    return reasons


def _model(request: Request) -> str:
    return f"a job of model {request.model}" if request.model else "a job of no model"


def unmet_room(request: Request, name: str, room: Room) -> list[Reason]:
    """GPUs, VRAM, cores and memory, each with both numbers."""
    reasons = []
    offer = room.offer
    request = request.on(offer)
    if request.gpu_count > room.free_devices():
        text = f"needs {count(request.gpu_count, 'GPU')}; {name} has {room.free_devices()} free of {len(offer.devices)}"
        reasons.append(Reason("gpu_count", text + _not_usable(offer), request.gpu_count > len(offer.devices)))
    elif (request.vram_mib or request.gpu_milli) and pick_devices(request, room) is None:
        reasons.append(_vram_reason(request, name, room))
    if request.cores_milli > max(0, room.cores_milli):
        needed = f"{show_cores(request.cores_milli)} core{'' if request.cores_milli == 1000 else 's'}"
        text = f"needs {needed}; {name} has {show_cores(max(0, room.cores_milli))} free"
        lasting = request.cores_milli > offer.cores_milli
        reasons.append(Reason("cores", f"{text} of {show_cores(offer.cores_milli)}", lasting))
    if request.memory_mib > room.free_memory():
        text = f"needs {show_mib(request.memory_mib)} of memory; {name} has {show_mib(room.free_memory())} free"
        lasting = request.memory_mib > offer.memory_mib
        reasons.append(Reason("memory", f"{text} of {show_mib(offer.memory_mib)}", lasting))
    return reasons


def _vram_reason(request: Request, name: str, room: Room) -> Reason:
    lasting = pick_devices(request, Room(room.offer.at_best())) is None
    if request.gpu_milli:
        return Reason("vram", _part_text(request, name, room), lasting)
    if request.shares_gpu:
        best = max((room.free_vram(place) for place in range(len(room.users))), default=0)
        text = f"needs {show_mib(request.vram_mib)} of one GPU's VRAM; the emptiest GPU of {name}"
        told = f"{text} has {show_mib(best)} free{_not_usable(room.offer)} {_vram_free(best, request.vram_mib)}"
        return Reason("vram", told, lasting)
    free = sorted((room.free_vram(place) for place, users in enumerate(room.users) if users == 0), reverse=True)
    best = sum(free[: request.gpu_count])
    gpus = count(request.gpu_count, "GPU")
    text = f"needs {gpus} with {show_mib(request.vram_mib)} of VRAM together; the largest free ones of {name}"
    told = f"{text} have {show_mib(best)}{_not_usable(room.offer)} {_vram_free(best, request.vram_mib)}"
    return Reason("vram", told, lasting)


def _part_text(request: Request, name: str, room: Room) -> str:
    offered = list(enumerate(room.offer.devices))
    free = [1000 * room.free_vram(place) // device.vram_mib for place, device in offered if device.vram_mib]
    also = f" with {show_mib(request.vram_mib)} of VRAM" if request.vram_mib else ""
    wanted = f"needs {request.gpu_milli / 1000:g} of one GPU{also}"
    if not free:
        return f"{wanted}; {name} has no GPU whose memory is known"
    return f"{wanted}; the emptiest GPU of {name} has {max(free) / 1000:g} free{_not_usable(room.offer)}"


def _vram_free(free_mib: int, needed_mib: int) -> str:
    """In the training API's words."""
    return f"(vram_free {max(0, free_mib) / 1024:.1f} GiB < {needed_mib / 1024:.1f} GiB)"


def _not_usable(offer: Offer) -> str:
    """What keeps devices from being used that is not ours: said beside the numbers, or they would look wrong."""
    notes = [f"GPU {device.index} is quarantined: {device.quarantine}" for device in offer.devices if device.quarantine]
    for device in offer.devices:
        if device.outside_mib:
            who = device.outside or "programs outside Ostler"
            notes.append(f"{show_mib(device.outside_mib)} of GPU {device.index} are taken by {who}")
    return f" ({'; '.join(notes)})" if notes else ""


def _slots_text(pool: str, worker: "Worker") -> str:
    if worker.slots is None:
        return f"{worker.id} has not announced its slots yet"
    if worker.slots_left(pool) > 0:
        return f"{worker.id} gets work when it asks: it has not announced its slots in a heartbeat"
    return f"needs a {pool} slot; {worker.id} has 0 free of {worker.slots.total(pool)}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
