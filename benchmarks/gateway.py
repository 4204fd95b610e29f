"""What the gateway's relay costs, beside nginx and no proxy at all, in one run on one machine.

python benchmarks/gateway.py [--requests 20000] [--streams 100] [--rounds 3] [--memory-requests 100000] [--nginx PATH]

Model server, proxy and load each have a process of their own; none is pinned to a core, but where it says so: there the
proxy has one core, and the other two share another. The model server does nothing: it answers a chat at once, or with
events at a fixed rate. Requests and answers have many lengths; the heads of a caller's requests differ in nothing else,
as those of most clients do, but where it says so. The relay checks the key, looks for the model in every body,
counts the tokens of every answer, and asks nobody (its gate stands open); nginx has one process, keeps its connections,
buffers nothing and looks at nothing. In turns, so that other work on the machine falls on all alike; medians of the
rounds. CPU is the proxy's own, from the nanoseconds in /proc/<pid>/task/*/schedstat: ticks of 10 ms are too coarse for
it. Of streams, how late each event came, without the first second.
`far` is a relay whose model is on another machine: its connections are tunnels that a worker's process opens, whose CPU
counts with the relay's, and its hub does nothing for most of every quarter of a second.
"""

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gateway_far import busy_hub, far_worker
from gateway_load import SECRET, load, serve_model

from ostler.gateway.control import Hello, KeySetup, ModelSetup, Open, Setup, Stop, frame, frames_to_hub

BAR_REQUEST, BAR_CHUNK, BAR_RATE = 3.0, 2.0, 0.5
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log stderr crit; master_process off;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder}; keepalive_requests 100000000;
  upstream model {{ server 127.0.0.1:{model}; keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


# Proxies


class Proxy(NamedTuple):
    name: str
    port: int
    pids: tuple[int, ...] = ()

    def cpu_s(self) -> float:
        threads = (one for pid in self.pids for one in Path(f"/proc/{pid}/task").iterdir())
        return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9

    def rss_mib(self) -> float:
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids) * PAGE_BYTES / 2**20


@contextlib.contextmanager
def relay(model_port: int, *, far: bool = False) -> Iterator[Proxy]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    options = ["--listen", "127.0.0.1:0", "--control", str(theirs.fileno())]
    child = subprocess.Popen([sys.executable, "-m", "ostler.gateway.relay", *options], pass_fds=[theirs.fileno()])
    theirs.close()
    helpers = []
    try:
        hello = next(one for one in frames_to_hub().feed(ours.recv(65536)) if isinstance(one, Hello))
        if far:
            heard, told = spawn.Pipe(duplex=False)
            gateway = f"http://127.0.0.1:{hello.port}"
            helpers.append(spawn.Process(target=far_worker, args=(heard, gateway, model_port), daemon=True))
            helpers.append(spawn.Process(target=busy_hub, args=(ours, model_port, SECRET, told), daemon=True))
        else:
            helpers.append(spawn.Process(target=listen_to_relay, args=(ours, model_port), daemon=True))
        for one in helpers:
            one.start()
        _wait_for(hello.port)
        pids = (child.pid, helpers[0].pid) if far else (child.pid,)
        yield Proxy("far" if far else "relay", hello.port, pids)
    finally:
        ours.sendall(frame([Stop(0.0)]))
        child.wait(10)
        for one in helpers:
            one.kill()
        ours.close()


def listen_to_relay(link: socket.socket, model_port: int) -> None:
    """The hub's part: it opens the gate once, and reads what it is told."""
    key = KeySetup(hashlib.sha256(SECRET.encode()).hexdigest(), "bench", "user")
    link.sendall(frame([Setup({"small": ModelSetup()}, [key], 2**26), Open("i1", "small", "127.0.0.1", model_port)]))
    frames = frames_to_hub()
    while data := link.recv(2**20):
        frames.feed(data)


@contextlib.contextmanager
def nginx(program: str, model_port: int) -> Iterator[Proxy]:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        configuration = Path(folder) / "nginx.conf"
        configuration.write_text(NGINX.format(folder=folder, port=port, model=model_port))
        child = subprocess.Popen([program, "-p", folder, "-e", "stderr", "-c", str(configuration)])
        try:
            _wait_for(port)
            yield Proxy("nginx", port, (child.pid,))
        finally:
            child.terminate()
            child.wait(10)


def _wait_for(port: int) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)
    raise SystemExit(f"gateway: nothing listens on port {port}")


# Measuring


def percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def pin(pids: list[int], cores: set[int]) -> None:
    for thread in (int(one.name) for pid in pids for one in Path(f"/proc/{pid}/task").iterdir()):
        os.sched_setaffinity(thread, cores)


class Bench:
    def __init__(self, options: argparse.Namespace, proxies: list[Proxy], pipe: Any) -> None:
        self.options = options
        self.proxies = proxies
        self._pipe = pipe

    def order(self, proxy: Proxy, *order: Any) -> tuple[list[float], float, float]:
        """Times, the seconds it took, and the proxy's CPU seconds."""
        cpu_s, began = proxy.cpu_s(), time.perf_counter()
        self._pipe.send((order[0], proxy.port, *order[1:]))
        times = self._pipe.recv()
        return times, time.perf_counter() - began, proxy.cpu_s() - cpu_s

    def in_turns(self, measure: Callable[[Proxy], dict[str, float]]) -> dict[str, dict[str, float]]:
        """Each proxy's medians."""
        rounds: dict[str, list[dict[str, float]]] = {proxy.name: [] for proxy in self.proxies}
        for _ in range(self.options.rounds):
            for proxy in self.proxies:
                rounds[proxy.name].append(measure(proxy))
        return {
            name: {key: statistics.median(one[key] for one in found) for key in found[0]}
            for name, found in rounds.items()
        }

    def alone(self, proxy: Proxy) -> dict[str, float]:
        times, _, cpu_s = self.order(proxy, "ask", 1, self.options.requests // 4)
        found = {f"p{share}": percentile(times, share / 100) * 1e6 for share in (50, 99)}
        return found | {"cpu": cpu_s / len(times) * 1e6}

    def together(self, proxy: Proxy, *, traced: bool = False) -> dict[str, float]:
        times, took_s, cpu_s = self.order(proxy, "ask", 32, self.options.requests, traced)
        found = {f"p{share}": percentile(times, share / 100) * 1e6 for share in (50, 99)}
        core = len(times) / cpu_s if cpu_s else 0.0
        return found | {"rate": len(times) / took_s, "cpu": cpu_s / len(times) * 1e6, "core": core}

    def traced(self, proxy: Proxy) -> dict[str, float]:
        """Callers who say something new in the head of each request."""
        return self.together(proxy, traced=True)

    @contextlib.contextmanager
    def on_one_core(self) -> Iterator[None]:
        """Each proxy on the first core, all else on the second."""
        cores = sorted(os.sched_getaffinity(0))
        proxies = [pid for proxy in self.proxies for pid in proxy.pids]
        others = [child.pid for child in multiprocessing.active_children() if child.pid not in proxies]
        try:
            pin(proxies, {cores[0]})
            pin(others, {cores[-1]})
            yield
        finally:
            pin([*proxies, *others], set(cores))

    def streams(self, streams: int, rate: float, seconds: float) -> Callable[[Proxy], dict[str, float]]:
        def measure(proxy: Proxy) -> dict[str, float]:
            late, took_s, cpu_s = self.order(proxy, "listen", streams, rate, seconds)
            events = streams * int(rate * seconds)
            if len(late) != events - streams * int(rate):
                raise SystemExit(f"gateway: {len(late) + streams * int(rate)} events came of {events}")
            found = {f"p{share}": percentile(late, share / 100) * 1e6 for share in (50, 99)}
            return found | {"cpu": cpu_s / events * 1e6, "share": cpu_s / took_s * 100, "rate": events / took_s}

        return measure

    def memory(self, proxy: Proxy) -> list[float]:
        sizes = [proxy.rss_mib()]
        for _ in range(10):
            self.order(proxy, "ask", 32, self.options.memory_requests // 10)
            sizes.append(proxy.rss_mib())
        return sizes


def table(title: str, found: dict[str, dict[str, float]], columns: dict[str, str], bar: float) -> None:
    """`bar` is how often nginx's CPU the relay's may be."""
    print(f"\n{title}")
    print(f"  {'':10s}" + "".join(f"{name:>18s}" for name in columns.values()))
    for proxy, values in found.items():
        print(f"  {proxy:10s}" + "".join(f"{values[key]:>18,.1f}" for key in columns))
    added = {name: {key: found[name][key] - found["direct"][key] for key in ("p50", "p99")} for name in found}
    for name in list(found)[1:]:
        print(f"  {name} adds p50 {added[name]['p50']:,.0f} µs, p99 {added[name]['p99']:,.0f} µs")
    if "nginx" in found and found["nginx"]["cpu"]:
        ratio = found["relay"]["cpu"] / found["nginx"]["cpu"]
        print(f"  CPU of the relay / nginx: {ratio:.2f}, {'within' if ratio <= bar else 'OVER'} the bar of {bar:g}")


def rates(found: dict[str, dict[str, float]]) -> None:
    """How many of nginx's requests the relay does: by the clock, where the load may be what is slow, and by its CPU."""
    if "nginx" in found:
        relay, nginx = found["relay"], found["nginx"]
        for key, what in (("rate", "requests/s"), ("core", "requests per second of CPU")):
            share = relay[key] / nginx[key]
            word = "within" if share >= BAR_RATE else "UNDER"
            print(f"  {what} of the relay / nginx: {share:.2f}, {word} the bar of {BAR_RATE:g}")


def measure(bench: Bench) -> None:
    options = bench.options
    latency = {"p50": "p50 µs", "p99": "p99 µs", "cpu": "proxy CPU µs/req"}
    table("One caller, one request at a time", bench.in_turns(bench.alone), latency, BAR_REQUEST)
    more = {"rate": "requests/s", "core": "per core of CPU"}
    table("32 callers", bench.in_turns(bench.together), latency | more, BAR_REQUEST)
    with bench.on_one_core():
        found = bench.in_turns(bench.together)
    table("32 callers, the proxy on one core", found, latency | more, BAR_REQUEST)
    rates(found)
    found = bench.in_turns(bench.traced)
    table("32 callers, each head with a number of its own", found, latency | more, BAR_REQUEST)
    late = {
        "p50": "late p50 µs",
        "p99": "late p99 µs",
        "cpu": "CPU µs/chunk",
        "share": "CPU % of a core",
        "rate": "chunks/s",
    }
    found = bench.in_turns(bench.streams(options.streams, 50, 4))
    table(f"{options.streams} streams at 50 tokens/s", found, late, BAR_CHUNK)
    table("500 streams at 30 tokens/s", bench.in_turns(bench.streams(500, 30, 5)), late, BAR_CHUNK)
    print(f"\nMemory over {options.memory_requests:,} requests, MiB after each tenth")
    for proxy in bench.proxies[1:]:
        print(f"  {proxy.name:10s}" + " ".join(f"{size:.1f}" for size in bench.memory(proxy)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-requests", type=int, default=100_000)
    parser.add_argument("--nginx", default=shutil.which("nginx"), help="the program; found in PATH by default")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    port_here, port_there = spawn.Pipe(duplex=False)
    model = spawn.Process(target=serve_model, args=(port_there,), daemon=True)
    model.start()
    model_port = port_here.recv()
    pipe, theirs = spawn.Pipe()
    loading = spawn.Process(target=load, args=(theirs,), daemon=True)
    loading.start()
    machine = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before the first round, nothing pinned"
    print(f"{machine}, Python {sys.version.split()[0]}, {options.rounds} rounds")
    with contextlib.ExitStack() as stack:
        proxies = [Proxy("direct", model_port)]
        if options.nginx:
            proxies.append(stack.enter_context(nginx(options.nginx, model_port)))
        else:
            print("nginx is not installed here: its rows are left out (--nginx PATH names one)")
        proxies.append(stack.enter_context(relay(model_port)))
        proxies.append(stack.enter_context(relay(model_port, far=True)))
        measure(Bench(options, proxies, pipe))
    pipe.send(None)
    loading.join(10)
    model.kill()
    print(f"\nload average {os.getloadavg()[0]:.1f} after the last round")


if __name__ == "__main__":
    main()
