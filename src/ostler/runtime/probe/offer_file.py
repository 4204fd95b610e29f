"""An offer from a file, in place of detection: for tests and for unusual hardware."""

import math
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from ostler.domain.errors import BadInput, Unreadable
from ostler.domain.gpu_names import common_type
from ostler.domain.resources import BACKENDS
from ostler.domain.worker import Capabilities, DeviceInfo, GpuInfo
from ostler.runtime.probe import machine

_MAX_AMOUNT = 1e12

Problem = tuple[str, str]


def load_offer(path: Path) -> Capabilities:
    """Amounts that the file leaves out are 0; facts that it leaves out (hostname, os, python, …) are detected."""
    table = _read(path)
    problems = [*_unknown_keys(table), *_wrong_values(table)]
    _refuse(path, problems)
    try:
        offer = msgspec.convert(table, Capabilities)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise _bad(path, [(where.rstrip("`"), what)]) from None
    if not any("index" in device for device in table.get("devices", [])):
        for index, device in enumerate(offer.devices):
            device.index = index
    _refuse(path, list(_contradictions(table, offer)))
    return _completed(offer, table)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", [(str(path), "cannot be read")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path}: not TOML: {error}", [(str(path), str(error))]) from None


def _unknown_keys(table: dict[str, Any]) -> Iterator[Problem]:
    yield from _unknown_in(table, Capabilities, "")
    for where, device in _tables(table.get("devices"), "devices"):
        yield from _unknown_in(device, DeviceInfo, where)
    info = table.get("gpu_info")
    if isinstance(info, dict):
        yield from _unknown_in(info, GpuInfo, "gpu_info.")
        for where, device in _tables(info.get("devices"), "gpu_info.devices"):
            yield from _unknown_in(device, DeviceInfo, where)


def _tables(values: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, value in enumerate(values if isinstance(values, list) else []):
        if isinstance(value, dict):
            yield f"{name}[{index}].", value


def _unknown_in(table: dict[str, Any], kind: type[msgspec.Struct], where: str) -> Iterator[Problem]:
    for key in table:
        if key not in kind.__struct_fields__:
            yield where + key, f"unknown key; {_nearest(key, kind.__struct_fields__)}"


def _nearest(word: str, valid: tuple[str, ...]) -> str:
    close = get_close_matches(word.lower().replace("-", "_"), valid, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"the valid ones are {', '.join(valid)}"


def _wrong_values(table: dict[str, Any]) -> Iterator[Problem]:
    """What the types do not say, and what they would say without the name of the key."""
    labels = table.get("labels")
    for key, value in labels.items() if isinstance(labels, dict) else ():
        if not isinstance(value, str):
            yield f"labels.{key}", f"Expected `str`, got `{type(value).__name__}`: write it in quotes"
    for key, value in _numbers(table, ""):
        if not math.isfinite(value) or value > _MAX_AMOUNT:
            yield key, f"{value} is not an amount"
    backend = table.get("gpu_backend")
    if isinstance(backend, str) and backend.lower() not in BACKENDS:
        yield "gpu_backend", f"{backend!r} is not a backend; {_nearest(backend, BACKENDS)}"


def _numbers(value: Any, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _numbers(inner, f"{where}[{index}]")
    elif isinstance(value, (int, float)):
        yield where, value


def _contradictions(table: dict[str, Any], offer: Capabilities) -> Iterator[Problem]:
    if "gpu_count" in table and offer.devices and offer.gpu_count != len(offer.devices):
        yield "gpu_count", f"is {offer.gpu_count}, but {len(offer.devices)} devices are listed"
        return
    indices = [device.index for device in offer.devices]
    if len(set(indices)) < len(indices):
        yield "devices", f"two devices have one index: {indices}; number all of them, or none"


def _completed(offer: Capabilities, table: dict[str, Any]) -> Capabilities:
    """Facts from the machine, and the sums that follow from the devices listed."""
    offer.gpu_backend = offer.gpu_backend.lower()
    for name, value in msgspec.structs.asdict(machine.facts()).items():
        if name not in table:
            setattr(offer, name, value)
    if offer.devices:
        offer.gpu_count = len(offer.devices)
        if "vram_gb" not in table:
            offer.vram_gb = sum((device.vram_gb for device in offer.devices), 0.0)
        if "gpu_type" not in table:
            offer.gpu_type = common_type([device.name for device in offer.devices])
    return offer


def _refuse(path: Path, problems: list[Problem]) -> None:
    if problems:
        raise _bad(path, problems)


def _bad(path: Path, problems: list[Problem]) -> BadInput:
    return BadInput("; ".join(f"{path}: {key}: {what}" for key, what in problems), problems)
