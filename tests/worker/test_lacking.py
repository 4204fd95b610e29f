"""What a task died of, where that was memory: the words of the libraries that people use, and the kernel's count."""

from pathlib import Path

import pytest

from ostler.worker.lacking import RECENT_S, TAIL_BYTES, KernelKills, lacked

VRAM = [
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.6 GiB",
    b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.77 GiB total capacity)",
    b"RuntimeError: CUDA error: out of memory",
    b"torch.OutOfMemoryError: HIP out of memory. Tried to allocate 12.00 GiB",
    b"RuntimeError: MPS backend out of memory (MPS allocated: 17.90 GB, other allocations: 1.25 GB)",
    b"jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 240.00GiB with allocator GPU_0",
    b"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
    b"2024-01-01 E external/xla: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    b"tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,512]",
    b"ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9216.00 MiB on device 0: cudaMalloc failed: out of memory",
    b"llama_model_load: error loading model: unable to allocate CUDA0 buffer",
    b"cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
    b"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 214,748,364,800 bytes (allocated so far: 0 bytes).",
    b"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    b"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    b"vk::DeviceMemory: ErrorOutOfDeviceMemory",
]
MEMORY = [
    b"Traceback (most recent call last):\nMemoryError",
    b"numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1000000000,)",
    b"terminate called after throwing an instance of 'std::bad_alloc'",
    b"OSError: [Errno 12] Cannot allocate memory",
    b"RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory",
    b'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
]


@pytest.mark.parametrize(("said", "what"), [*((said, "vram") for said in VRAM), *((said, "memory") for said in MEMORY)])
def test_the_words_of_a_death_for_want_of_memory_are_known(said: bytes, what: str) -> None:
    log = b"step 1\n" + said + b"\nat exit: 3 workers stopped\n"
    assert lacked(log, False) == (what, said.split(b"\n")[-1].decode())


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"ValueError: shapes do not match",
        b"memory: 12 GiB used, peak memory 13 GiB",
        b"free(): invalid pointer",
        b"the test test_out_of_memory passed",
        b"KeyError: 'MemoryError'",
    ],
)
def test_other_deaths_are_not_taken_for_it(said: bytes) -> None:
    assert lacked(said, False) == ("", "")


def test_what_it_said_long_before_its_end_it_did_not_die_of() -> None:
    log = VRAM[0] + b", trying a smaller batch\n" + b"step\n" * (TAIL_BYTES // 5) + b"AssertionError\n"
    assert lacked(log, False) == ("", "")


def test_a_task_that_the_kernel_killed_says_nothing_and_is_known_by_the_kernels_count() -> None:
    what, line = lacked(b"step 7\n", True)
    assert what == "memory"
    assert "the kernel killed it" in line


def kernel(root: Path, machine: int, group: int) -> None:
    files = {
        "proc/vmstat": f"nr_free_pages 7\noom_kill {machine}\nthp 1\n",
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.events": f"low 0\noom 3\noom_kill {group}\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(("machine", "group"), [(6, 2), (5, 3)])
def test_a_kill_is_recent_for_a_while_whether_the_machine_or_our_group_was_full(
    tmp_path: Path, machine: int, group: int
) -> None:
    kernel(tmp_path, 5, 2)
    kills = KernelKills(tmp_path)
    assert not kills.look(100.0)
    kernel(tmp_path, machine, group)
    assert kills.look(110.0)
    assert kills.look(110.0 + RECENT_S / 2)
    assert not kills.look(111.0 + RECENT_S)


def test_where_the_kernel_counts_nothing_nothing_is_seen(tmp_path: Path) -> None:
    assert not KernelKills(tmp_path).look(100.0)
