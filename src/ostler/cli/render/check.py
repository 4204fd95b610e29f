"""What `ostler worker --check` found."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ostler.cli.render.parts import facts, heading, indented, plain
from ostler.cli.render.words import amount, gib
from ostler.domain.worker import Capabilities


def check_screen(has: Capabilities, memory_free_gb: float, fit_for: list[str], notes: list[str]) -> RenderableType:
    parts: list[RenderableType] = [heading(has.hostname), indented(facts(_facts(has, memory_free_gb))), Text()]
    if fit_for:
        parts += [heading("Fit for"), *(indented(plain(line)) for line in fit_for)]
    else:
        parts.append(Text("Nothing can run here: no cores or no memory to give.", "bold red"))
    if notes:
        parts += [Text(), heading("Notes"), *(indented(plain(line)) for line in notes)]
    return Group(*parts)


def _facts(has: Capabilities, memory_free_gb: float) -> Iterator[tuple[str, Any]]:
    yield "system", f"{has.os} {has.arch}, Python {has.python}"
    yield "cores", amount(has.cpu_count)
    free = f", {gib(memory_free_gb)} of it unused right now" if memory_free_gb else ""
    yield "memory", gib(has.memory_gb) + free
    yield "disk", f"{gib(has.disk_free_gb)} free" if has.disk_free_gb else ""
    yield "backend", has.gpu_backend
    for device in has.devices:
        yield f"GPU {device.index}", f"{device.name or has.gpu_type or 'unknown'}, {gib(device.vram_gb)}"
    if has.gpu_count and not has.devices:
        yield "GPUs", f"{has.gpu_count}×{has.gpu_type or 'GPU'}, {gib(has.vram_gb)} together"
    if gpus := has.gpu_info:
        yield "driver", gpus.driver + (f" (CUDA {gpus.cuda})" if gpus.cuda else "")
    yield "labels", " ".join(f"{name}={value}" for name, value in sorted(has.labels.items()))
    yield "torch", has.torch_version
    yield "git commit", has.git_commit
