"""Two hubs on one ledger and one store, and workers that know both."""

import json
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from tests.process_fleet import ProcessFleet, until

import ostler
from ostler.client import Patience

HURRIED = (sys.executable, str(Path(__file__).with_name("hurried.py")))
"""Of the hubs' own times none is made short: three seconds of silence are as long here as anywhere."""
TAKES_OVER_S = 60.0
WHO = """
import http.server, json, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps({"pid": os.getpid()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""A service, or a model, that says which process it is."""
REFUSED = "another hub leads now, so this one may not write"
"""What a leader says whose term was over when it wrote."""
Document = dict[str, Any]


class TwoHubFleet(ProcessFleet):
    """Hubs `a` and `b`; `fleet` is a client that knows both."""

    def __init__(self, folder: Path, address: str, program: tuple[str, ...] = HURRIED) -> None:
        super().__init__(folder, program)
        self.store = folder / "store"
        ports = [f"http://127.0.0.1:{port}" for port in free_ports(4)]
        self.urls = dict(zip("ab", ports[:2], strict=True))
        self.gateways = dict(zip("ab", ports[2:], strict=True))
        self.url = ",".join(self.urls.values())
        self.environment |= {"OSTLER_LEDGER": address, "OSTLER_STORE": str(self.store), "OSTLER_HUB": self.url}

    def start_hub(self, name: str = "a") -> None:
        port, gateway_port = (urls[name].rpartition(":")[2] for urls in (self.urls, self.gateways))
        state = ("--state-dir", str(self.folder / f"hub-{name}"), "--config", str(self.folder / "ostler.toml"))
        self._start(name, ("hub", "--port", port, "--gateway-port", gateway_port, *state))

    def start_again(self, name: str) -> None:
        self.start_hub(name)
        self.await_role(name, "standby")

    def meet(self) -> None:
        """Once a hub has made its tokens."""
        self.state.mkdir()
        for token in ("admin.token", "join.token"):
            (self.state / token).write_text((self.store / token).read_text())
            (self.state / token).chmod(0o600)
        self.token = (self.state / "admin.token").read_text().strip()
        patience = Patience(tries=100, first_pause_s=0.1, growth=1.0)
        self.client = ostler.connect(self.url, self.token, patience=patience)
        self.hub = self.client.hub

    def leader(self) -> str:
        return next(name for name in self.urls if self.role(name) == "leader")

    def other(self, name: str) -> str:
        return "b" if name == "a" else "a"

    def role(self, name: str) -> str:
        """What the hub says of itself; nothing where it does not answer."""
        return str(self.health(name).get("role", ""))

    def health(self, name: str) -> Document:
        try:
            return self.get(name, "/v1/health", timeout_s=1.0)[1]
        except OSError:
            return {}

    def get(self, name: str, path: str, timeout_s: float = 60.0, **request: Any) -> tuple[int, Document, Any]:
        """Status, document and headers of this very hub's answer."""
        return self._ask(self.urls[name] + path, timeout_s, request)

    def call_model(self, name: str) -> Document:
        """By the gateway of this hub."""
        return self._ask(self.gateways[name] + "/v1/chat/completions", TAKES_OVER_S, {"data": b'{"model": "who"}'})[1]

    def _ask(self, url: str, timeout_s: float, request: Document) -> tuple[int, Document, Any]:
        given = {"headers": {"Authorization": f"Bearer {self.token}"} if hasattr(self, "token") else {}, **request}
        asked = urllib.request.Request(url, **given)
        try:
            with urllib.request.urlopen(asked, timeout=timeout_s) as got:
                return got.status, json.load(got), got.headers
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), error.headers

    def await_role(self, name: str, role: str) -> None:
        until(lambda: self.role(name) == role, f"{name} is a {role}: {self.log_of(name)}", TAKES_OVER_S)

    def pause(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for name in self.urls.keys() & self.processes.keys():
            self.go_on(name)
            self.processes[name] = self.processes.pop(name)  # the workers go first
        super().close()


class Submitter:
    """Sends jobs one by one until it is told to stop; what it has is acknowledged."""

    def __init__(self, fleet: TwoHubFleet) -> None:
        self.acknowledged: list[str] = []
        self.longest_gap_s = 0.0
        self._fleet = fleet
        self._stop = threading.Event()
        self._done = ThreadPoolExecutor(1).submit(self._work)

    def _work(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(0.02):
            self.acknowledged.append(self._fleet.hub.submit({"command": ["true"]})["id"])
            self.longest_gap_s, last = max(self.longest_gap_s, time.monotonic() - last), time.monotonic()

    def grow(self) -> None:
        count = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > count + 3, "jobs are acknowledged", TAKES_OVER_S)

    def stop(self) -> None:
        self._stop.set()
        self._done.result(TAKES_OVER_S)

    def check(self) -> None:
        """Each is there once, and has ended well."""
        for job_id in self.acknowledged:
            assert self._fleet.client.wait(job_id, timeout=TAKES_OVER_S)["state"] == "succeeded"
        found = [job["id"] for job in self._fleet.hub.all_jobs()]
        assert len(found) == len(set(found)) and set(found) >= set(self.acknowledged)


@contextmanager
def two_hub_fleet(
    folder: Path, address: str, *workers: str, program: tuple[str, ...] = HURRIED
) -> Iterator[TwoHubFleet]:
    """Both hubs, of which `a` leads, and these workers, ready."""
    made = TwoHubFleet(folder, address, program)
    (folder / "who.py").write_text(WHO)
    (folder / "ostler.toml").write_text(f'[models.who]\ncmd = "{sys.executable} {folder}/who.py ${{PORT}}"\n')
    try:
        made.start_hub("a")
        made.await_role("a", "leader")
        made.meet()
        made.start_hub("b")
        for name in workers:
            made.start_worker(name)
        made.await_workers(*workers)
        made.await_role("b", "standby")
        yield made
    finally:
        made.close()
