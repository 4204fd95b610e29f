"""A task that takes memory of a GPU with PyTorch: `holding.py GIB [--until FILE] [--begun FILE] [--apart]`.

It prints one line of JSON: what of the device was in use before it took anything, how much it then took, and its pid.
"""

import argparse
import json
import os
import subprocess
import sys
import time

GIB = 2**30


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("gib", type=float)
    parser.add_argument("--until", default="", help="hold it until this file exists")
    parser.add_argument("--seconds", type=float, default=0.0, help="hold it for so long at least")
    parser.add_argument("--begun", default="", help="made when it is held")
    parser.add_argument("--apart", action="store_true", help="held by a process that this one leaves behind")
    options = parser.parse_args()
    if options.apart:
        return leave_behind(options)
    before = used_mib()
    import torch

    held = torch.empty(int(options.gib * GIB), dtype=torch.uint8, device="cuda")
    held.fill_(1)
    torch.cuda.synchronize()
    print(
        json.dumps({"before_mib": before, "held_gib": options.gib, "pid": os.getpid(), "at": time.time()}), flush=True
    )
    if options.begun:
        open(options.begun, "w").close()
    time.sleep(options.seconds)
    while options.until and not os.path.exists(options.until):
        time.sleep(0.05)
    return 0


def leave_behind(options: argparse.Namespace) -> int:
    """A daemon with a session of its own, and this process ends well: nobody of the family waits for it."""
    arguments = [sys.executable, __file__, str(options.gib), "--begun", options.begun, "--until", "/nowhere"]
    subprocess.Popen(arguments, start_new_session=True)
    while not os.path.exists(options.begun):
        time.sleep(0.05)
    return 0


def used_mib() -> int:
    """By NVML, before CUDA has a context here: its own would count."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0])
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) // 2**20
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    sys.exit(main())
