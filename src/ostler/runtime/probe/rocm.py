"""AMD GPUs with ROCm, from sysfs: no library of the vendor's is needed, or loaded."""

import os
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from ostler.domain.worker import DeviceInfo
from ostler.runtime.probe import mask, pci
from ostler.runtime.probe.found import Found, gib


class Card(msgspec.Struct, kw_only=True):
    index: int
    """Its place among the AMD GPUs, in the order of the PCI bus."""
    uuid: str = ""
    name: str = ""
    total_bytes: int = 0
    used_bytes: int | None = None


def probe(root: Path = Path("/")) -> Found:
    cards = read(root)
    if not cards:
        return Found()
    if not os.access(root / "dev/kfd", os.R_OK | os.W_OK):
        return Found(notes=["rocm: an AMD GPU is here, but /dev/kfd cannot be opened (is the user in group render?)"])
    if not _installed(root):
        return Found(notes=["rocm: an AMD GPU is here, but ROCm is not installed; it is left to Vulkan"])
    return offered(cards, os.environ, _text(root / "sys/module/amdgpu/version"))


def read(root: Path = Path("/")) -> list[Card]:
    found: dict[str, Path] = {}
    for card in (root / "sys/class/drm").glob("card*"):
        device = card / "device"
        # Outputs of a card ('card0-DP-1') lead to no such file of their own.
        if _text(device / "vendor").lower() == pci.AMD and _number(device / "mem_info_vram_total"):
            found[device.resolve().name] = device
    return [_card(index, found[address]) for index, address in enumerate(sorted(found))]


def offered(cards: list[Card], env: Mapping[str, str], driver: str = "") -> Found:
    """ROCR's mask comes first, and HIP's counts what that one left; HIP takes CUDA's mask when it has none itself."""
    chosen = mask.visible(env.get("ROCR_VISIBLE_DEVICES"), cards, _answers)
    second = env.get("HIP_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))
    numbered = list(enumerate(chosen))
    chosen = [card for _, card in mask.visible(second, numbered, lambda entry, word: word == str(entry[0]))]
    notes = []
    if len(chosen) < len(cards):
        notes.append(f"rocm: the masks of visible devices leave {len(chosen)} of {len(cards)}")
    return Found(devices=[_info(card) for card in chosen], driver=driver, notes=notes)


def _answers(card: Card, word: str) -> bool:
    return word == str(card.index) or (bool(card.uuid) and word.lower() == card.uuid.lower())


def _card(index: int, device: Path) -> Card:
    unique = _text(device / "unique_id")
    return Card(
        index=index,
        uuid=f"GPU-{unique}" if unique else "",
        name=_text(device / "product_name") or f"AMD {_text(device / 'device')}",
        total_bytes=_number(device / "mem_info_vram_total") or 0,
        used_bytes=_number(device / "mem_info_vram_used"),
    )


def _info(card: Card) -> DeviceInfo:
    return DeviceInfo(
        index=card.index,
        uuid=card.uuid,
        name=card.name,
        vram_gb=gib(card.total_bytes),
        vram_free_gb=None if card.used_bytes is None else gib(card.total_bytes - card.used_bytes),
    )


def _installed(root: Path) -> bool:
    """The kernel's part is on every desktop with an AMD GPU; programs need the other part too, torch brings its own."""
    if (root / "opt/rocm").exists() or shutil.which("rocminfo") or shutil.which("amd-smi"):
        return True
    try:
        return "rocm" in metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
