"""A real service on a real worker, called through the hub; and a folder that travels to its program."""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ostler

SERVER = """
import http.server, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{os.environ['OSTLER_ATTEMPT']} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.path == "/end":
            os._exit(3)

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[ostler.Fleet]:
    with ostler.local(offer={"cpu_count": 4, "memory_gb": 8}) as made:
        yield made


def call(fleet: ostler.Fleet, path: str) -> str:
    token = fleet.hub.credentials()[0]["Authorization"]
    request = urllib.request.Request(fleet.url + path, headers={"Authorization": token})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def test_a_service_is_called_from_its_first_moment_and_found_again_after_it_has_moved(fleet: ostler.Fleet) -> None:
    spec = {
        "name": "hello",
        "type": "service",
        "command": [sys.executable, "-c", SERVER, "{port}"],
        "health_check": {"readiness": "/ready", "interval_secs": 0.2},
        "max_retries": 3,
    }
    job_id = fleet.hub.submit(spec)["id"]
    first, _, path = call(fleet, "/services/hello/greet?who=me").partition(" ")
    assert path == "/greet?who=me"
    deadline = time.monotonic() + 20
    while fleet.hub.job(job_id)["health"] != "healthy":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    fleet.hub.requeue(job_id)
    second = call(fleet, "/services/hello/x").partition(" ")[0]
    assert second != first
    fleet.cancel(job_id)
    fleet.wait(job_id, timeout=60)
    with pytest.raises(urllib.error.HTTPError) as gone:
        call(fleet, "/services/hello/")
    assert gone.value.code == 503
    problem: dict[str, Any] = json.loads(gone.value.read())
    assert "has ended: cancelled" in problem["detail"]


def test_a_program_starts_in_a_copy_of_the_folder_that_was_sent_along(fleet: ostler.Fleet, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "words.py").write_text("HELLO = 'from the folder'\n")
    (tmp_path / "main.py").write_text("from lib.words import HELLO\nprint(HELLO)\n")
    job = fleet.submit_command([sys.executable, "main.py"], snapshot=tmp_path)
    ended = job.wait(timeout=60)
    assert (ended["state"], job.logs()) == ("succeeded", "from the folder\n")
