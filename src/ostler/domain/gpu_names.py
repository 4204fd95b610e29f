"""The names of GPUs: the short type that jobs ask for ('NVIDIA A100-SXM4-80GB' is an A100), and longer names."""

import re
from collections.abc import Sequence
from functools import lru_cache

_ASIDE = re.compile(r"\([^)]*\)")
_SYSTEM = re.compile(r"\bdgx[\s_-]+\w+/", re.IGNORECASE)
_BRAND = re.compile(
    r"(?<![a-z0-9])"
    r"(nvidia|amd|ati|intel|apple|tesla|geforce|quadro|radeon|instinct|arc|graphics|gpu|generation)"
    r"(?![a-z0-9])",
    re.IGNORECASE,
)
_BUILD = re.compile(r"[\s_-]+(sxm\d*|pcie?|nvl|hbm\d\w?|\d+\s?gb?)(?![a-z0-9.])", re.IGNORECASE)
_SLICE = re.compile(r"[\s_-]+mig[\s_-]+", re.IGNORECASE)
_SEPARATORS = re.compile(r"[\s_-]+")


def gpu_type(name: str) -> str:
    """Without vendor, form factor, memory size and spaces, so that it can be typed unquoted on a command line."""
    whole, *profile = _SLICE.split(name, maxsplit=1)
    plain = _ASIDE.sub(" ", whole)
    short = _squeeze(_BUILD.sub("", _without_brand(plain))) or _squeeze(plain) or _squeeze(whole)
    # A slice of an A100 is not an A100: a job that asked for one would not fit.
    return "-".join([short, *(part.strip() for part in profile)])


def common_type(names: Sequence[str]) -> str:
    """The type of all of them; empty when they differ, for a worker states one type for all its devices."""
    types = {gpu_type(name) for name in names}
    return types.pop() if len(types) == 1 else ""


def names_of(announced: str, devices: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """
    Returns the type of a machine's GPUs, and the longer names by which a job may ask for them too: the announced name,
    and the name of the devices where all devices have one name that agrees with the type.
    """
    short = gpu_type(announced) or common_type(devices)
    longer = [announced] if announced else []
    if len(set(devices)) == 1 and _key(gpu_type(devices[0])) == _key(short):
        longer.append(devices[0])
    return short, tuple(sorted({name for name in longer if _key(name) != _key(short)}))


@lru_cache(maxsize=4096)
def is_named(wanted: str, names: tuple[str, ...]) -> bool:
    """
    Whether one of the wanted names, with `|` between them, is one of these. Case, separators, vendor and product line
    do not count: 'RTX 4090' is 'NVIDIA GeForce RTX 4090'.
    """
    keys = {_key(name) for name in names} - {""}
    return any(_key(word) in keys for word in wanted.split("|"))


def _key(name: str) -> str:
    plain = _ASIDE.sub(" ", name.lower())
    return _SEPARATORS.sub("", _without_brand(plain)) or _SEPARATORS.sub("", plain) or name.lower()


def _without_brand(name: str) -> str:
    return _BRAND.sub(" ", _SYSTEM.sub(" ", name))


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", "", text).strip("-_,@")
