"""The wire that `relay.py` lays, for whoever breaks it."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.relay import Addresses

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("up", "down")
TRIES = 20


class NoNamespaces(Exception):
    """Network namespaces cannot be made here: run it as root on a Linux with /dev/net/tun and iproute2."""


class Wire:
    def __init__(self, name: str, number: int, seed: int) -> None:
        self.name = name
        self.hub, self.far = Addresses(number).hub, Addresses(number).far
        self._relay = subprocess.Popen(
            [sys.executable, "-m", "chaos.relay", name, str(number), str(seed)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if not self._answer():
            raise NoNamespaces(self._relay.communicate()[1][-500:])

    def inside(self) -> tuple[str, ...]:
        """What goes before a command so that it runs at the far end."""
        return ("nsenter", f"--net=/run/netns/{self.name}")

    def cut(self, *ways: str) -> None:
        """Packets that go `up` to the hub, or `down` from it, vanish; nobody is told."""
        self.order({way: {"open": False} for way in ways})

    def slow(self, delay_s: float, loss: float) -> None:
        """In both directions."""
        self.order({way: {"delay_s": delay_s, "loss": loss} for way in WAYS})

    def heal(self) -> None:
        self.order({way: {"open": True, "delay_s": 0.0, "loss": 0.0} for way in WAYS})

    def counts(self) -> dict[str, dict[str, int]]:
        return self.order({})

    def order(self, order: dict[str, Any]) -> dict[str, dict[str, int]]:
        assert self._relay.stdin is not None
        self._relay.stdin.write(json.dumps(order) + "\n")
        self._relay.stdin.flush()
        told: dict[str, dict[str, int]] = json.loads(self._answer())
        return told

    def _answer(self) -> str:
        assert self._relay.stdout is not None
        return self._relay.stdout.readline()

    def close(self) -> None:
        if self._relay.stdin is not None:
            self._relay.stdin.close()
        self._relay.wait(60)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)


def is_possible() -> str:
    """Why not, or nothing."""
    if os.geteuid() != 0:
        return "not root"
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    return "" if shutil.which("ip") and shutil.which("nsenter") else "no iproute2"


@contextmanager
def wire(seed: int = 0) -> Iterator[Wire]:
    """A wire of its own, with a namespace that is gone afterwards."""
    if why_not := is_possible():
        raise NoNamespaces(why_not)
    made = None
    for number in random.sample(range(1, 251), TRIES):
        if not os.path.exists(f"/run/netns/och{number}"):
            made = Wire(f"och{number}", number, seed)
            break
    if made is None:
        raise NoNamespaces(f"{TRIES} namespaces och* are there already; `ip netns del` those that nobody uses")
    try:
        yield made
    finally:
        made.close()
