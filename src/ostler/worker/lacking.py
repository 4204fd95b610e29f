"""Whether a task died for want of memory: by what it said last, and by what the kernel counts."""

import re
import signal
from pathlib import Path

VRAM, MEMORY = "vram", "memory"
TAIL_BYTES = 16 * 1024
"""What a task said long before its end it did not die of."""
KILLED = 128 + signal.SIGKILL
RECENT_S = 15.0

_OUT_OF_VRAM = re.compile(
    rb"CUDA out of memory"  # torch: OutOfMemoryError, and before that RuntimeError
    rb"|HIP out of memory"
    rb"|MPS backend out of memory"
    rb"|CUDA_ERROR_OUT_OF_MEMORY"  # the driver's name for it; numba, CuPy, TensorFlow
    rb"|cudaErrorMemoryAllocation"  # the runtime's; also Thrust and cuDF
    rb"|CUDA error:? (?:\(?2\)?:? )?out of memory"  # torch and llama.cpp, from the runtime's text
    rb"|cupy\.cuda\.memory\.OutOfMemoryError"
    rb"|CUDNN_STATUS_ALLOC_FAILED"
    rb"|CUBLAS_STATUS_ALLOC_FAILED"
    rb"|RESOURCE_EXHAUSTED: Out of memory"  # XLA: JAX
    rb"|OOM when allocating tensor"  # TensorFlow
    rb"|failed to allocate (?:CUDA|ROCm|HIP|Vulkan|Metal)\d* buffer"  # llama.cpp
    rb"|unable to allocate (?:CUDA|ROCm|HIP|Vulkan|Metal)\d* buffer"
    rb"|cudaMalloc failed: out of memory"  # ggml
    rb"|No available memory for the cache blocks"  # vLLM
    rb"|OutOfDeviceMemory"  # Vulkan
    rb"|outOfVram|Insufficient Memory \(00000008",  # Metal
)
_OUT_OF_MEMORY = re.compile(
    rb"(?m)^MemoryError\b"
    rb"|numpy\.(?:_?core\.)?_exceptions\.(?:_ArrayMemoryError|MemoryError)"
    rb"|std::bad_alloc"
    rb"|Cannot allocate memory"
    rb"|DefaultCPUAllocator: can't allocate memory"
    rb"|java\.lang\.OutOfMemoryError"
    rb"|fatal error: runtime: out of memory"
)


def lacked(log: bytes, killed_for_memory: bool) -> tuple[str, str]:
    """What it ran out of, and the line that says so; of a task that failed by itself."""
    tail = log[-TAIL_BYTES:]
    for what, pattern in ((VRAM, _OUT_OF_VRAM), (MEMORY, _OUT_OF_MEMORY)):
        places = [found.start() for found in pattern.finditer(tail)]
        if places:
            return what, _line_at(tail, places[-1])
    if killed_for_memory:
        return MEMORY, "the kernel killed it because the machine, or its control group, was out of memory"
    return "", ""


def _line_at(text: bytes, at: int) -> str:
    begin = max(text.rfind(b"\n", 0, at), text.rfind(b"\r", 0, at)) + 1
    end = text.find(b"\n", at)
    shown = text[begin : end if end >= 0 else len(text)].decode(errors="replace")
    return "".join(one for one in shown if one.isprintable()).strip()


class KernelKills:
    """Whether the kernel has lately killed something for want of memory, on this machine or in our control group."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = [root / "proc/vmstat", *_events(root)]
        self._last = self._count()
        self._new_at = -RECENT_S

    def look(self, now: float) -> bool:
        """To be asked now and then: what happened long before the question is not recent."""
        count = self._count()
        if count > self._last:
            self._last, self._new_at = count, now
        return now - self._new_at < RECENT_S

    def _count(self) -> int:
        return sum(_oom_kills(file) for file in self._files)


def _events(root: Path) -> list[Path]:
    """Of our own control group: a container's limit is not seen by the counter of the whole machine's memory."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    ours = [line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")]
    return [root / "sys/fs/cgroup" / group / "memory.events" for group in ours]


def _oom_kills(file: Path) -> int:
    try:
        counted = dict(line.split() for line in file.read_text().splitlines() if line.count(" ") == 1)
        return int(counted.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0
