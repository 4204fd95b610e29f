"""The short name by which jobs ask for a GPU: 'NVIDIA A100-SXM4-80GB' is an A100."""

import re

_ASIDE = re.compile(r"\([^)]*\)")
_BRAND = re.compile(
    r"\b(nvidia|amd|ati|intel|apple|tesla|geforce|quadro|radeon|instinct|arc|graphics|gpu|generation)\b", re.IGNORECASE
)
_BUILD = re.compile(r"[\s-]+(sxm\d*|pcie?|nvl|hbm\d\w?|\d+\s?gb)\b", re.IGNORECASE)


def gpu_type(name: str) -> str:
    """Without vendor, form factor, memory size and spaces, so that it can be typed unquoted on a command line."""
    whole, _, profile = name.partition(" MIG ")
    plain = _ASIDE.sub(" ", whole)
    short = _squeeze(_BUILD.sub("", _BRAND.sub(" ", plain))) or _squeeze(plain)
    # A slice of an A100 is not an A100: a job that asked for one would not fit.
    return f"{short}-{profile.strip()}" if profile else short


def common_type(names: list[str]) -> str:
    """The type of all of them; empty when they differ, for a worker states one type for all its devices."""
    types = {gpu_type(name) for name in names}
    return types.pop() if len(types) == 1 else ""


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", "", text).strip("-_,@")
