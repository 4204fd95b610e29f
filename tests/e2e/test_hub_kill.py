"""kill -9 of a hub under load: what was acknowledged is there, exactly once."""

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.process_hub import ProcessHub

SUBMITS = 1000
THREADS = 4
KILLS = 2
BATCH = 7
"""Every third submit is an array of so many specs."""


class Submitters:
    """Threads that send submits one by one, each under its own Idempotency-Key again and again until it is acknowledged."""

    def __init__(self, hub: ProcessHub) -> None:
        self.hub = hub
        self.up = threading.Event()
        self.acknowledged: dict[str, str] = {}
        """The id that a name was answered with."""
        self.count = 0
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(THREADS)]

    def start(self) -> None:
        self.up.set()
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def until(self, count: int) -> None:
        """Until so many submits have been acknowledged."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, 60)

    def _work(self, number: int) -> None:
        connection: http.client.HTTPConnection | None = None
        for one in range(number, SUBMITS, THREADS):
            while True:
                assert self.up.wait(60)
                try:
                    connection = connection or self._connect()
                    self._submit(connection, one)
                    break
                except (OSError, http.client.HTTPException):
                    connection = None  # the hub is gone; what was not acknowledged is sent again

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.hub.url.removeprefix("http://"), timeout=60)

    def _submit(self, connection: http.client.HTTPConnection, one: int) -> None:
        names = [f"s{one}-{part}" for part in range(BATCH)] if one % 3 == 0 else [f"s{one}"]
        specs = [{"command": ["true"], "name": name} for name in names]
        headers = {"Authorization": f"Bearer {self.hub.token('admin')}", "Idempotency-Key": f"submit-{one}"}
        connection.request("POST", "/v1/jobs", json.dumps(specs if len(specs) > 1 else specs[0]), headers)
        answer = connection.getresponse()
        document: dict[str, Any] = json.loads(answer.read())
        assert answer.status in (200, 201), document
        ids = document["ids"] if len(specs) > 1 else [document["id"]]
        with self._changed:
            self.acknowledged |= dict(zip(names, ids, strict=True))
            self.count += 1
            self._changed.notify_all()


def jobs_of(hub: ProcessHub) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection(hub.url.removeprefix("http://"), timeout=60)
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        path = f"/v1/jobs?limit=1000{cursor}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {hub.token('admin')}"})
        page = json.loads(connection.getresponse().read())
        found += page["jobs"]
        if page["next"] is None:
            return found
        cursor = f"&cursor={page['next']}"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ProcessHub]:
    process = ProcessHub(tmp_path)
    process.start()
    yield process
    if process.running:
        process.kill()


def test_every_job_that_was_acknowledged_before_a_kill_is_there_exactly_once(hub: ProcessHub) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = sorted(random.Random(seed).sample(range(SUBMITS // 10, SUBMITS - SUBMITS // 10), KILLS))
    submitters = Submitters(hub)
    submitters.start()
    for moment in moments:
        submitters.until(moment)
        submitters.up.clear()
        hub.kill()
        acknowledged = dict(submitters.acknowledged)
        hub.start()
        found = jobs_of(hub)
        names = Counter(job["name"] for job in found)
        there = {job["name"]: job["id"] for job in found}
        assert {name: there.get(name) for name in acknowledged} == acknowledged
        assert set(names.values()) == {1}
        batches = Counter(name.partition("-")[0] for name in names if "-" in name)
        assert set(batches.values()) <= {BATCH}, "an array of specs is there in part"
        submitters.up.set()
    submitters.join()
    found = jobs_of(hub)
    assert {job["name"]: job["id"] for job in found} == submitters.acknowledged
    assert len(found) == len(submitters.acknowledged) == SUBMITS + (BATCH - 1) * len(range(0, SUBMITS, 3))
