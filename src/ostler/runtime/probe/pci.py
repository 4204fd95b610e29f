"""Which vendors' GPUs are on the PCI bus: tells 'no GPU here' from 'a GPU whose driver does not work'."""

from pathlib import Path

NVIDIA = "0x10de"
AMD = "0x1002"

_DISPLAY_CLASSES = ("0x03", "0x12")  # display controllers, and accelerators without a display


def gpu_vendors(root: Path = Path("/")) -> set[str]:
    found = set()
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            if (device / "class").read_text().startswith(_DISPLAY_CLASSES):
                found.add((device / "vendor").read_text().strip().lower())
        except OSError:
            continue
    return found
