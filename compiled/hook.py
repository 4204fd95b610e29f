"""For the wheel that has the compiled core: `OSTLER_COMPILED=1 pip wheel .`, or `make wheel-compiled`.

Without that word in the environment the wheel is plain Python. One with a compiled core is for one Python on one
platform, and an installer prefers it there to the plain one of the same version.
"""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WANTED = "OSTLER_COMPILED"


def is_wanted() -> bool:
    return os.environ.get(WANTED, "") not in ("", "0")


class CompiledCore(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        return ["mypy[mypyc]>=2.0", "setuptools", "msgspec>=0.20"] if is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not is_wanted() or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "compiled"))
        from build import TARGET, build

        build()
        for path in TARGET.rglob("*.so"):
            build_data["force_include"][str(path)] = path.relative_to(TARGET).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
