"""What is on the GPUs beside our tasks: what ended tasks have left, and what others hold. Pure, over what was read."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from ostler.domain.worker import Capabilities, DeviceInfo
from ostler.runtime.probe.usage import DeviceUsage, ProcessUsage

SLACK_MIB = 64
"""Drivers keep a little here and there; less than this is nothing."""
UNSEEN = "a process that cannot be seen from here"


class Quarantine(msgspec.Struct, kw_only=True):
    """A device on which an ended task left something."""

    task_id: str
    attempt: str
    baseline_mib: int
    text: str


class Outside(msgspec.Struct, frozen=True):
    """What programs that Ostler did not start hold on a device."""

    mib: int
    text: str


def baseline(usages: Iterable[DeviceUsage], indices: Collection[int]) -> dict[int, int]:
    """What is in use on these devices before a task starts, without what other programs hold and may let go of."""
    return {one.index: _own_mib(one, "") for one in usages if one.index in indices}


def left_behind(
    usages: Iterable[DeviceUsage], before: Mapping[int, int], task_id: str, attempt: str
) -> dict[int, Quarantine]:
    """The devices that are not as they were before this attempt, whose processes are all said to be gone."""
    found = {}
    for one in usages:
        excess = _own_mib(one, attempt) - before[one.index] if one.index in before else 0
        if excess > SLACK_MIB:
            culprits = [_named(process) for process in one.processes if _is_of(process, attempt)]
            by = ", ".join(culprits) or "no process that can be seen"
            found[one.index] = Quarantine(
                task_id=task_id,
                attempt=attempt,
                baseline_mib=before[one.index],
                text=f"{excess} MiB still held after task {task_id} ended, by {by}",
            )
    return found


def still_quarantined(usages: list[DeviceUsage], now: Mapping[int, Quarantine]) -> dict[int, Quarantine]:
    """The same devices looked at again. One of which nothing was read stays as it is."""
    read = {one.index for one in usages}
    found = {}
    for index, old in now.items():
        if index not in read:
            found[index] = old
            continue
        found |= left_behind(usages, {index: old.baseline_mib}, old.task_id, old.attempt)
    return found


def outside(usages: Iterable[DeviceUsage], held: Mapping[int, Collection[str]]) -> dict[int, Outside]:
    """`held`: the attempts that hold each device, in full or in part.

    A process of which that cannot be told may be one of theirs; on a device that they do not hold, it is not.
    """
    ours = {attempt for attempts in held.values() for attempt in attempts}
    found = {}
    for one in usages:
        others = [
            process
            for process in one.processes
            if process.attempt not in ours and (process.known or not held.get(one.index))
        ]
        mib = sum(process.mib for process in others)
        if mib > SLACK_MIB:
            found[one.index] = Outside(mib, ", ".join(f"{_named(process)}: {process.mib} MiB" for process in others))
    return found


def held_by(usages: Iterable[DeviceUsage], attempt: str, indices: Collection[int], before: Mapping[int, int]) -> int:
    """What an attempt holds on these devices, in MiB: its processes' memory, or, on a device that it has for itself
    and whose processes cannot be told apart, all that was not there before it."""
    total = 0
    for one in usages:
        if one.index in indices:
            told = sum(process.mib for process in one.processes if process.attempt == attempt)
            grown = max(0, _own_mib(one, attempt) - before[one.index]) if one.index in before else 0
            total += max(told, grown)
    return total


def offered(
    capabilities: Capabilities, outside: Mapping[int, Outside], quarantine: Mapping[int, Quarantine]
) -> list[DeviceInfo]:
    """The devices of the offer, with all this said about them."""
    nobody = Outside(0, "")
    return [
        _told(device, outside.get(device.index, nobody), quarantine.get(device.index))
        for device in capabilities.devices
    ]


def _told(device: DeviceInfo, outside: Outside, quarantine: Quarantine | None) -> DeviceInfo:
    """What our own tasks hold counts as free: the hub knows of it, and would take it off a second time."""
    outside_gb = outside.mib / 1024
    ours_gb = device.vram_gb if device.vram_free_gb is None else device.vram_free_gb
    return msgspec.structs.replace(
        device,
        vram_free_gb=max(0.0, ours_gb - outside_gb) if device.vram_gb else None,
        outside_gb=outside_gb,
        outside=outside.text,
        quarantine=quarantine.text if quarantine else device.quarantine,
    )


def _own_mib(usage: DeviceUsage, attempt: str) -> int:
    """What is in use there and not held by somebody who is surely not of this attempt."""
    return usage.used_mib - sum(one.mib for one in usage.processes if not _is_of(one, attempt))


def _is_of(process: ProcessUsage, attempt: str) -> bool:
    return not process.known or (bool(attempt) and process.attempt == attempt)


def _named(process: ProcessUsage) -> str:
    return f"pid {process.pid} ({process.name})" if process.name else f"pid {process.pid}, {UNSEEN}"
