"""A wire between two network namespaces, packet by packet: `python -m chaos.relay NAME NUMBER`.

The kernel's own way of delaying and losing packets is not in every kernel; this one needs a TUN device and root. One
end is in the namespace of whoever starts it, the other in the namespace NAME, from where the addresses of `Addresses`
are reached and nothing else. Orders are lines of JSON on standard input, each answered by a line:

    {"up": {"open": true, "delay_s": 0.0, "loss": 0.0}, "down": {...}}

`up` is away from NAME. Loopback addresses travel too, so that the hub may stay where it listens without certificates.
"""

import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 16_000
LARGEST = 65_536


@dataclass(frozen=True)
class Addresses:
    """Of the wire with this number; 1 to 250."""

    number: int

    @property
    def hub(self) -> str:
        return f"127.213.{self.number}.1"

    @property
    def near(self) -> str:
        return f"10.213.{self.number}.1"

    @property
    def far(self) -> str:
        return f"10.213.{self.number}.2"


@dataclass
class Way:
    """One direction."""

    target: int
    open: bool = True
    delay_s: float = 0.0
    loss: float = 0.0
    carried: int = 0
    dropped: int = 0


class Relay:
    def __init__(self, near: int, far: int, seed: int, orders: int = 0) -> None:
        self._orders = orders
        self.ways = {far: Way(near), near: Way(far)}
        self._named = {"up": self.ways[far], "down": self.ways[near]}
        self._draw = random.Random(seed)
        self._late: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()

    def run(self) -> None:
        """Until nobody is left who could give an order."""
        orders = b""
        while True:
            ready, _, _ = select.select([*self.ways, self._orders], [], [], self._next_s())
            for descriptor in ready:
                if descriptor == self._orders:
                    data = os.read(descriptor, 4096)
                    if not data:
                        return
                    *whole, orders = (orders + data).split(b"\n")
                    for order in whole:
                        print(json.dumps(self.obey(json.loads(order))), flush=True)
                else:
                    self._take(descriptor)
            self._let_go()

    def _next_s(self) -> float | None:
        return max(0.0, self._late[0][0] - time.monotonic()) if self._late else None

    def obey(self, order: dict[str, dict[str, float]]) -> dict[str, dict[str, int]]:
        """What each direction has carried and dropped until now."""
        for name, settings in order.items():
            for field, value in settings.items():
                setattr(self._named[name], field, value)
        return {name: {"carried": way.carried, "dropped": way.dropped} for name, way in self._named.items()}

    def _take(self, source: int) -> None:
        way = self.ways[source]
        packet = os.read(source, LARGEST)
        if not way.open or (way.loss and self._draw.random() < way.loss):
            way.dropped += 1
        elif way.delay_s:
            heapq.heappush(self._late, (time.monotonic() + way.delay_s, next(self._numbers), source, packet))
        else:
            self._carry(way, packet)

    def _let_go(self) -> None:
        while self._late and self._late[0][0] <= time.monotonic():
            *_, source, packet = heapq.heappop(self._late)
            if self.ways[source].open:
                self._carry(self.ways[source], packet)
            else:
                self.ways[source].dropped += 1

    def _carry(self, way: Way, packet: bytes) -> None:
        try:
            os.write(way.target, packet)
            way.carried += 1
        except OSError:  # the device's queue is full, or it goes down: lost, as on any network
            way.dropped += 1


def tun(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def lay(name: str, number: int) -> tuple[int, int]:
    """Both ends of the wire, up; the namespace is made by this, and goes with `ip netns del`."""
    where = Addresses(number)
    ends = f"{name}-n", f"{name}-f"
    ip("netns", "add", name)
    near, far = map(tun, ends)
    ip("addr", "add", f"{where.near}/32", "dev", ends[0])
    ip("link", "set", ends[0], "up", "mtu", str(MTU))
    ip("route", "add", f"{where.far}/32", "dev", ends[0])
    _let_loopback_travel(ends[0])
    ip("link", "set", ends[1], "netns", name)
    inside = ("-n", name)
    ip(*inside, "link", "set", "lo", "up")
    ip(*inside, "addr", "del", "127.0.0.1/8", "dev", "lo")  # or the hub's address would be its own
    ip(*inside, "addr", "add", "127.0.0.1/32", "dev", "lo")
    ip(*inside, "addr", "add", f"{where.far}/32", "dev", ends[1])
    ip(*inside, "link", "set", ends[1], "up", "mtu", str(MTU))
    ip(*inside, "route", "add", f"{where.hub}/32", "dev", ends[1], "src", where.far)
    setting = f"echo 1 > /proc/sys/net/ipv4/conf/{ends[1]}/route_localnet"
    subprocess.run(["ip", "netns", "exec", name, "sh", "-c", setting], check=True)
    return near, far


def _let_loopback_travel(device: str) -> None:
    with open(f"/proc/sys/net/ipv4/conf/{device}/route_localnet", "w") as setting:
        setting.write("1")


def main(name: str, number: int, seed: int) -> None:
    near, far = lay(name, number)
    print("{}", flush=True)
    Relay(near, far, seed).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
