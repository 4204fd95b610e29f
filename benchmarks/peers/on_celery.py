"""Celery over a Redis of its own on loopback, which writes nothing to the disk."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import celery
import redis
from benchmarks.peers.measure import Peer, measure, until
from celery import Celery

BROKER = "OSTLER_BENCH_BROKER"
NOBODY = "nobody"
WATCHED = 50
WORKER = "worker -c 2 -O fair -l ERROR --without-gossip --without-mingle --without-heartbeat".split()
app = Celery("bench", broker=os.environ.get(BROKER), backend=os.environ.get(BROKER))
app.conf.update(
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
    result_expires=600,
    worker_send_task_events=False,
)


@app.task(name="nothing")
def nothing() -> None:
    return None


@app.task(name="true")
def true() -> int:
    return subprocess.run(["true"]).returncode


@contextmanager
def program(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def send(task: celery.Task, count: int, queue: str = "celery") -> list[str]:
    with app.producer_or_acquire() as producer:
        return [task.apply_async(producer=producer, queue=queue).id for _ in range(count)]


def all_of(store: redis.Redis, task: celery.Task, count: int) -> None:
    """Counting the results' keys is cheaper for Redis than waiting for each."""
    keys = [f"celery-task-meta-{ident}" for ident in send(task, count)]
    until(lambda: store.exists(*keys[-WATCHED:]) == len(keys[-WATCHED:]), "the last results", 300)
    until(lambda: store.exists(*keys) == count, "all results", 60)
    store.delete(*keys)


def queue(store: redis.Redis, count: int) -> None:
    send(nothing, count, NOBODY)
    if store.llen(NOBODY) != count:
        raise SystemExit(f"Redis has {store.llen(NOBODY)} of {count} tasks")


def main() -> None:
    server = shutil.which("redis-server")
    if server is None:
        raise SystemExit("redis-server is not installed here")
    port = free_port()
    os.environ |= {BROKER: f"redis://127.0.0.1:{port}/0", "C_FORCE_ROOT": "1"}
    app.conf.update(broker_url=os.environ[BROKER], result_backend=os.environ[BROKER])
    at = ("--bind", "127.0.0.1", "--port", str(port))
    with tempfile.TemporaryDirectory(prefix="celery-") as folder:
        memory_only = ("--save", "", "--appendonly", "no", "--dir", folder)
        worker = (sys.executable, "-m", "celery", "-A", "benchmarks.peers.on_celery:app", *WORKER)
        with program(server, *at, *memory_only) as broker, redis.Redis(port=port) as store:
            until(lambda: answers(store), "an answer of Redis")
            with program(*worker):
                true.delay().get(timeout=60)
                measure(peer(store, broker.pid))


def answers(store: redis.Redis) -> bool:
    try:
        return bool(store.ping())
    except redis.ConnectionError:
        return False


def peer(store: redis.Redis, broker: int) -> Peer:
    return Peer(
        version=f"{celery.__version__}, Redis {store.info()['redis_version']}",
        setup="two prefork processes that fetch 64 tasks ahead, no gossip, mingle, heartbeat or events; "
        "Redis keeps nothing on the disk",
        jobs=lambda count: all_of(store, true, count),
        calls={"tasks": lambda count: all_of(store, nothing, count)},
        once=lambda: true.delay().get(timeout=60, interval=0.001),
        queue={"a queue without workers": lambda count: queue(store, count)},
        processes=[broker],
        at_most={"W2": 2000, "W4": 10_000},
    )


if __name__ == "__main__":
    main()
