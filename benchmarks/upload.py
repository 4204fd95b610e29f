"""A large artifact to a hub and back: how fast, how much memory the hub takes for it, and whether it still answers.

python benchmarks/upload.py [--size 2g] [--at-once 1] [--most-mib 200]

The hub is a process of its own; its memory is the most that it ever had resident (VmHWM). Each upload is cut once half
way and goes on. Exits 1 if the hub took more memory than allowed, or if the bytes are not what they were.
"""

import argparse
import hashlib
import http.client
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from ostler.domain.quantities import parse_size

MIB = 1024 * 1024
ASK_EVERY_S = 0.02


class Bundle:
    """Bytes that are never in memory as a whole, the same whenever they are asked for."""

    def __init__(self, size: int, number: int) -> None:
        self.size = size
        self._block = hashlib.shake_256(str(number).encode()).digest(MIB)
        digest = hashlib.sha256()
        for piece in self.pieces(0):
            digest.update(piece)
        self.sha256 = digest.hexdigest()

    def pieces(self, first: int) -> Iterator[bytes]:
        for start in range(first - first % MIB, self.size, MIB):
            piece = start.to_bytes(8, "big") + self._block[8:]
            yield piece[max(0, first - start) : min(MIB, self.size - start)]


class ProcessHub:
    def __init__(self, state: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ostler", "hub", "--port", "0", "--state-dir", str(state)],
            stderr=subprocess.DEVNULL,
        )
        address = state / "hub.url"
        while not address.exists():
            if self._process.poll() is not None:
                raise SystemExit("upload: the hub did not start")
            time.sleep(0.05)
        self._address = urlsplit(address.read_text().strip())
        self._token = (state / "admin.token").read_text().strip()

    def peak_mib(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=600)

    def headers(self, **more: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", **more}

    def offset(self, sha256: str) -> int:
        connection = self.connection()
        connection.request("HEAD", f"/v1/model/{sha256}", headers=self.headers())
        return int(connection.getresponse().headers["Upload-Offset"])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)


def bring(hub: ProcessHub, bundle: Bundle) -> int:
    """Half of it, then the rest from where the hub has it; from which byte that was."""
    path = f"/v1/model/{bundle.sha256}"
    connection = hub.connection()
    connection.putrequest("PUT", path)
    for name, value in hub.headers(**{"Content-Length": str(bundle.size)}).items():
        connection.putheader(name, value)
    connection.endheaders()
    sent = 0
    for piece in bundle.pieces(0):
        if sent >= bundle.size // 2:
            break
        connection.send(piece)
        sent += len(piece)
    connection.close()
    while True:
        first = hub.offset(bundle.sha256)
        connection = hub.connection()
        span = {"Content-Range": f"bytes {first}-{bundle.size - 1}/{bundle.size}"}
        headers = hub.headers(**span, **{"Content-Length": str(bundle.size - first)})
        connection.request("PUT", path, body=bundle.pieces(first), headers=headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 201:
            return first
        if answer.status != 409:
            raise SystemExit(f"upload: the hub answered {answer.status}")


def fetch(hub: ProcessHub, bundle: Bundle) -> None:
    connection = hub.connection()
    connection.request("GET", f"/v1/model/{bundle.sha256}", headers=hub.headers())
    answer = connection.getresponse()
    digest = hashlib.sha256()
    while piece := answer.read(MIB):
        digest.update(piece)
    if digest.hexdigest() != bundle.sha256:
        raise SystemExit("upload: what came back is something else")


class Asking:
    """Somebody who asks the hub small things all the while."""

    def __init__(self, hub: ProcessHub) -> None:
        self.took_s: list[float] = []
        self._hub = hub
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "Asking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _ask(self) -> None:
        connection = self._hub.connection()
        while not self._done.wait(ASK_EVERY_S):
            begun = time.perf_counter()
            connection.request("GET", "/v1/status", headers=self._hub.headers())
            connection.getresponse().read()
            self.took_s.append(time.perf_counter() - begun)

    def line(self) -> str:
        median, slowest = statistics.median(self.took_s) * 1000, max(self.took_s) * 1000
        return f"answers meanwhile: median {median:.1f} ms, slowest {slowest:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("2g"))
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--most-mib", type=float, default=200.0)
    options = parser.parse_args()
    bundles = [Bundle(options.size, number) for number in range(options.at_once)]
    total_mib = options.size * options.at_once / MIB
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as senders:
        hub = ProcessHub(Path(folder))
        try:
            idle = hub.peak_mib()
            for what, call in (("upload", bring), ("download", fetch)):
                with Asking(hub) as asking:
                    begun = time.perf_counter()
                    list(senders.map(lambda bundle, call=call: call(hub, bundle), bundles))
                    took_s = time.perf_counter() - begun
                speed = f"{total_mib:,.0f} MiB in {took_s:.1f} s, {total_mib / took_s:,.0f} MiB/s"
                print(f"  {what:8s} {speed}; {asking.line()}")
            peak = hub.peak_mib()
        finally:
            hub.stop()
    print(f"  memory of the hub: {idle:.0f} MiB idle, {peak:.0f} MiB at most")
    if peak > options.most_mib:
        raise SystemExit(f"upload: the hub took more than {options.most_mib:g} MiB")


if __name__ == "__main__":
    main()
