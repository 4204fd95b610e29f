"""The floor: what this machine can do without any scheduler at all."""

import os

from benchmarks.peers.measure import Peer, measure

TRUE = "/usr/bin/true" if os.path.exists("/usr/bin/true") else "/bin/true"


def jobs(count: int) -> None:
    for number in range(count):
        if number >= 2:
            os.waitpid(-1, 0)
        os.posix_spawn(TRUE, ["true"], {})
    for _ in range(min(count, 2)):
        os.waitpid(-1, 0)


measure(Peer(version="", setup="two processes at a time, waited for by their parent", jobs=jobs, once=lambda: jobs(1)))
