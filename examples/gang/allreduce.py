"""An all-reduce over a gang, with torch.distributed and gloo where torch is installed.

    ostler submit --snapshot examples --nodes 4 -- python gang/allreduce.py      # four workers

Every member finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as torchrun would set them. Without
torch the members add up the same numbers over a plain socket, so that the example runs anywhere.
"""

import os
import socket
import struct
import time

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MASTER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
PATIENCE_S = 60.0


def with_torch(value: float) -> float:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return float(tensor[0])


def with_sockets(value: float) -> float:
    return gather(value) if RANK == 0 else report(value)


def gather(value: float) -> float:
    """Rank 0 hears everybody, and tells everybody the sum."""
    with socket.create_server(MASTER) as listener:
        listener.settimeout(PATIENCE_S)
        peers = [listener.accept()[0] for _ in range(WORLD_SIZE - 1)]
        total = value + sum(struct.unpack("!d", peer.recv(8, socket.MSG_WAITALL))[0] for peer in peers)
        for peer in peers:
            peer.sendall(struct.pack("!d", total))
            peer.close()
    return total


def report(value: float) -> float:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with socket.create_connection(MASTER, timeout=PATIENCE_S) as master:
                master.sendall(struct.pack("!d", value))
                (total,) = struct.unpack("!d", master.recv(8, socket.MSG_WAITALL))
                return float(total)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    value = float(2**RANK)
    try:
        total = with_torch(value)
    except ImportError:
        total = with_sockets(value)
    expected = float(2**WORLD_SIZE - 1)
    print(f"rank {RANK} of {WORLD_SIZE}: {value:g} went in, {total:g} came out", flush=True)
    if total != expected:
        raise SystemExit(f"expected {expected:g}")


if __name__ == "__main__":
    main()
