"""Masks of visible devices that were set before the worker started, read as the drivers read them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def visible(mask: str | None, devices: Sequence[T], answers: Callable[[T, str], bool]) -> list[T]:
    """
    The devices that the mask leaves, in their own order. No mask leaves all of them, an empty one none;
    the drivers stop reading at the first name that they do not know ('-1' hides what comes after it).
    """
    if mask is None:
        return list(devices)
    chosen: set[int] = set()
    for word in mask.split(","):
        hits = [place for place, device in enumerate(devices) if answers(device, word.strip())]
        if not hits:
            break
        chosen.update(hits)
    return [devices[place] for place in sorted(chosen)]
