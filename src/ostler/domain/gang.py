"""The variables by which the members of a gang find each other, as torchrun sets them."""

from collections.abc import Sequence


def torchrun(rank: int, hosts: Sequence[str], master_port: int) -> dict[str, str]:
    """`hosts` are those of all members, in order of rank."""
    return {
        "RANK": str(rank),
        "NODE_RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(len(hosts)),
        "NNODES": str(len(hosts)),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(master_port),
    }
