"""What an operator's manifest says about a host: which models it may train, and how much of it may be used."""

from collections.abc import Mapping

import msgspec

from ostler.domain.quantities import offered_mib, offered_milli
from ostler.domain.resources import Device, Offer


class HostPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lists name models; an empty list of allowed ones allows all. A cap that is None caps nothing."""

    allow_jobs: tuple[str, ...] = ()
    deny_jobs: tuple[str, ...] = ()
    cpu_cores: float | None = None
    ram_gib: float | None = None
    vram_gib: float | None = None
    """Of each device."""
    gpu_count: int | None = None

    def applied_to(self, offer: Offer) -> Offer:
        """What is left of an offer under this policy."""
        devices = offer.devices if self.gpu_count is None else offer.devices[: self.gpu_count]
        if self.vram_gib is not None:
            most = offered_mib(self.vram_gib)
            devices = tuple(_capped(device, most) for device in devices)
        cores = offer.cores_milli if self.cpu_cores is None else min(offer.cores_milli, offered_milli(self.cpu_cores))
        memory = offer.memory_mib if self.ram_gib is None else min(offer.memory_mib, offered_mib(self.ram_gib))
        return msgspec.structs.replace(
            offer,
            devices=devices,
            cores_milli=cores,
            memory_mib=memory,
            allow_jobs=self.allow_jobs,
            deny_jobs=self.deny_jobs,
        )


def _capped(device: Device, most_mib: int) -> Device:
    return msgspec.structs.replace(device, vram_mib=min(device.vram_mib, most_mib))


Hosts = Mapping[str, HostPolicy]


def policy_of(hosts: Hosts, worker_id: str, hostname: str) -> HostPolicy | None:
    """A worker is meant by its own name, or by that of its machine."""
    return hosts.get(worker_id) or hosts.get(hostname)
