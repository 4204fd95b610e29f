"""The account of one worker's room: its offer less what is held there. There is no other account of capacity."""

from ostler.core.holding import NO_GPUS, Grant, Holding
from ostler.domain.resources import POOLS, Offer, Request


def gpu_thousandths(held: Holding, offer: Offer) -> int:
    """The GPUs of a holding, in thousandths: a share counts as the part of its device that it is."""
    if not held.grant.share_mib:
        return 1000 * len(held.grant.devices)
    sizes = [device.vram_mib for device in offer.devices if device.index in held.grant.devices]
    # A device that has shrunk, or is no longer offered, counts as one and no more.
    return min(1000, 1000 * held.grant.share_mib // max(1, sum(sizes)))


class Room:
    """Headroom, kept beside the holdings by `take` and `give` alone and compared with them in check()."""

    __slots__ = (
        "_devices",
        "_seen",
        "_sizes",
        "_usable",
        "cores_milli",
        "memory_mib",
        "offer",
        "placed",
        "position",
        "users",
        "vram_mib",
    )

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.cores_milli = offer.cores_milli
        self.memory_mib = offer.memory_mib
        self._usable = [device.usable_mib for device in offer.devices]
        self._sizes = [device.vram_mib for device in offer.devices]
        self.vram_mib = list(self._usable)
        """Free memory of each device, in the offer's order."""
        self.users = [1 if device.quarantine else 0 for device in offer.devices]
        """Holdings on each device. 0: it can be granted whole."""
        self.position = {device.index: place for place, device in enumerate(offer.devices)}
        self.placed = dict.fromkeys(POOLS, 0)
        self._devices: tuple[tuple[int, bool, int], ...] | None = None
        self._seen = any(device.free_mib is not None for device in offer.devices)

    def take(self, held: Holding) -> None:
        self._change(held, 1)

    def give(self, held: Holding) -> None:
        self._change(held, -1)

    def _change(self, held: Holding, sign: int) -> None:
        if not held.pool:
            return
        self.cores_milli -= sign * held.cores_milli
        self.memory_mib -= sign * held.memory_mib
        self.placed[held.pool] += sign
        if held.grant.devices:
            self._devices = None
        for index in held.grant.devices:
            place = self.position.get(index)
            if place is None:  # the device has left the offer while it was held
                continue
            self.users[place] += sign
            self.vram_mib[place] -= sign * (held.grant.share_mib or self._usable[place])

    def free_vram(self, place: int) -> int:
        """Of a device: what nobody of ours holds and what was seen to be free, whichever is less."""
        free = self.vram_mib[place]
        return self.offer.devices[place].seen_free(free) if self._seen else free

    def free_memory(self) -> int:
        free, seen = self.memory_mib, self.offer.available_mib
        return max(0, free if seen is None or free < seen else seen)

    def free_devices(self) -> int:
        return self.users.count(0)

    def state(self) -> tuple[object, ...]:
        """Equal for workers that the scheduler need not tell apart by their room."""
        return (self.cores_milli, self.memory_mib, tuple(self.vram_mib), tuple(self.users))

    def device_state(self) -> tuple[tuple[int, bool, int], ...]:
        """What decides whether a GPU request can be served, whatever the devices' order."""
        if self._devices is None:
            sizes = self._sizes
            each = [(self.free_vram(place), users == 0, sizes[place]) for place, users in enumerate(self.users)]
            self._devices = tuple(sorted(each))
        return self._devices


def pick_devices(request: Request, room: Room) -> Grant | None:
    """The devices that this request would get, or None. The smallest that do, so that large ones stay whole."""
    if request.prefers_cuda:
        request = request.on(room.offer)
    if request.gpu_count:
        return _pick_whole(request, room)
    if request.shares_gpu:
        return _pick_share(request, room)
    return NO_GPUS


def _pick_whole(request: Request, room: Room) -> Grant | None:
    devices = room.offer.devices
    free = sorted((room.free_vram(i), i) for i, users in enumerate(room.users) if users == 0)
    # The last window holds the largest devices, so the search fails only where no choice would do.
    for start in range(len(free) - request.gpu_count + 1):
        window = free[start : start + request.gpu_count]
        if sum(vram for vram, _ in window) >= request.vram_mib:
            return Grant(tuple(sorted(devices[i].index for _, i in window)))
    return None


def _pick_share(request: Request, room: Room) -> Grant | None:
    found: tuple[int, int, int] | None = None
    for place, device in enumerate(room.offer.devices):
        free = room.free_vram(place)
        if free > 0 and (found is None or free < found[0]) and 0 < (need := request.share_mib(device)) <= free:
            found = (free, device.index, need)
    return None if found is None else Grant((found[1],), found[2])
