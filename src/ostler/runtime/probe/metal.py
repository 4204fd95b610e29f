"""Apple's GPUs, from system_profiler and sysctl."""

import json
import re
from typing import Any

import msgspec

from ostler.domain.worker import DeviceInfo
from ostler.runtime.probe import isolated, machine
from ostler.runtime.probe.found import Found, gib

# What Metal recommends as the working set of one program, where the machine's owner has not set another limit.
_WORKING_SET_SHARE = 0.67
_VRAM_KEYS = ("spdisplays_vram", "_spdisplays_vram", "spdisplays_vram_shared")


class Gpu(msgspec.Struct, kw_only=True):
    name: str
    vram_bytes: int | None = None
    """None: unified memory, as on every Apple GPU."""


def probe() -> Found:
    profile = isolated.ask(["system_profiler", "SPDisplaysDataType", "-json"])
    if profile.failure:
        return Found(notes=[f"metal: system_profiler {profile.failure}"])
    # -i: older systems do not know the second name, and are still to print the first.
    sysctl = isolated.ask(["sysctl", "-i", "hw.memsize", "iogpu.wired_limit_mb"])
    return offered(parse_profile(profile.stdout), parse_sysctl(sysctl.stdout), machine.memory())


def parse_profile(text: str) -> list[Gpu]:
    """The GPUs in the document of `system_profiler SPDisplaysDataType -json` that know Metal."""
    try:
        entries = json.loads(text).get("SPDisplaysDataType", [])
    except (ValueError, AttributeError):
        return []
    return [
        Gpu(name=str(entry.get("sppci_model") or entry.get("_name") or "Apple GPU"), vram_bytes=_vram_bytes(entry))
        for entry in entries
        if isinstance(entry, dict) and _knows_metal(entry)
    ]


def parse_sysctl(text: str) -> dict[str, int]:
    values = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if value.strip().isdigit():
            values[name.strip()] = int(value)
    return values


def offered(gpus: list[Gpu], sysctl: dict[str, int], memory: machine.Memory) -> Found:
    """Metal has no mask to tell programs apart by, so a machine offers one GPU: the one with the most memory."""
    if not gpus:
        return Found()
    budget = _working_set_bytes(sysctl, memory)
    best = max(gpus, key=lambda gpu: budget if gpu.vram_bytes is None else gpu.vram_bytes)
    unified = best.vram_bytes is None
    device = DeviceInfo(
        index=0,
        name=best.name,
        vram_gb=gib(budget if best.vram_bytes is None else best.vram_bytes),
        vram_free_gb=gib(min(budget, memory.available_bytes)) if unified else None,
    )
    others = [gpu.name for gpu in gpus if gpu is not best]
    notes = [f"metal: {', '.join(others)} not offered: programs cannot be told which GPU to use"] if others else []
    return Found(devices=[device], unified_memory=unified, notes=notes)


def _working_set_bytes(sysctl: dict[str, int], memory: machine.Memory) -> int:
    wired = sysctl.get("iogpu.wired_limit_mb", 0) * 2**20
    return wired or int(sysctl.get("hw.memsize", memory.total_bytes) * _WORKING_SET_SHARE)


def _knows_metal(entry: dict[str, Any]) -> bool:
    """The key and its values changed with every few versions of macOS; 'metal' and 'mtl' are in all of them."""
    told = [str(value).lower() for key, value in entry.items() if "metal" in key.lower() or "mtl" in key.lower()]
    if told:
        return any("notsupported" not in value.replace("_", "") for value in told)
    return "apple" in str(entry.get("spdisplays_vendor", "")).lower()


def _vram_bytes(entry: dict[str, Any]) -> int | None:
    for key in _VRAM_KEYS:
        size = re.match(r"\s*(\d+(?:\.\d+)?)\s*(MB|GB)", str(entry.get(key, "")), re.IGNORECASE)
        if size:
            return int(float(size[1]) * (2**30 if size[2].upper() == "GB" else 2**20))
    return None
