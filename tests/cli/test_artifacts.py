"""`ostler artifacts` against a real hub, with artifacts that a plain HTTP client has brought."""

import hashlib
import json
import os
import random
import re
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3
from tests.archive.test_unpack import announced
from tests.process_fleet import ProcessFleet, process_fleet
from tests.worker.archives import archive, entry

from ostler.client import Hub

MODEL = random.Random(3).randbytes(3_000_000)
FILES = {"model.bin": MODEL, "logs/train.txt": b"done\n"}
BUNDLE = archive(*(entry(name, data) for name, data in FILES.items()))
CAPABILITY = {"cuda_available": False, "cuda_devices": [], "ram_available_gib": 8, "ram_total_gib": 8, "cpu_cores": 4}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Store:
    """A hub and one who brings artifacts to it."""

    def __init__(self, fleet: ProcessFleet) -> None:
        self.fleet = fleet
        token = (fleet.state / "admin.token").read_text().strip()
        self.hub = Hub(fleet.url, token)
        self._http = urllib3.PoolManager(headers={"Authorization": f"Bearer {token}"})

    def call(self, method: str, path: str, body: Any = None, expect: int = 200) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self._http.request(method, self.fleet.url + path, body=data)
        assert answer.status == expect, (answer.status, answer.data)
        return answer.json() if answer.data else None

    def bring(self, data: bytes, expect: int = 201) -> None:
        self.call("PUT", f"/v1/model/{sha256(data)}", data, expect)

    def trained(self, data: bytes, name: str, **training: Any) -> str:
        """A job that has succeeded with this artifact; its id."""
        job: str = self.hub.submit({"command": ["true"], "name": name, "training": training})["id"]
        claim = self.call("POST", "/v1/job/claim", {"hostname": "pi", "capability": CAPABILITY})
        assert claim["job_id"] == job
        self.bring(data)
        ended = {"hostname": "pi", "attempt": claim["attempt"], "artifact_id": sha256(data), "metrics": {"f1": 0.75}}
        self.call("POST", f"/v1/job/{job}/complete", ended)
        return job

    def stored(self, data: bytes) -> Path:
        return self.fleet.state / "artifacts" / "objects" / sha256(data)[:2] / sha256(data)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with process_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        found = Store(fleet)
        yield found
        found.hub.close()


@pytest.fixture(scope="module")
def job(store: Store) -> str:
    """A job with an artifact, for all who only look."""
    return store.trained(BUNDLE, "gbt-realistic", model="gbt", mode="realistic")


def test_the_list_shows_what_there_is(store: Store, job: str) -> None:
    page = store.fleet.json("artifacts", "list")
    assert [one["id"] for one in page["artifacts"]] == [sha256(BUNDLE)]
    lines = store.fleet.run("artifacts", "list").stdout.splitlines()
    assert lines[0].split() == ["ID", "MODEL", "JOB", "SIZE", "WORKER", "AGE", "METRICS"]
    assert re.match(rf"{sha256(BUNDLE)[:12]} +gbt realistic +gbt-realistic +2\.87 MiB +pi +\d+s +f1=0\.75$", lines[1])
    assert store.fleet.json("artifacts", "list", "--job", job)["artifacts"]
    assert store.fleet.json("artifacts", "list", "--model", "mlp")["artifacts"] == []
    assert store.fleet.run("artifacts", "list", "--model", "mlp").stdout == "no artifacts\n"


@pytest.mark.parametrize("of", ["id", "beginning", "job", "name"])
def test_an_artifact_is_found_by_its_id_and_by_its_job(store: Store, job: str, of: str) -> None:
    text = {"id": sha256(BUNDLE), "beginning": sha256(BUNDLE)[:8], "job": job, "name": "gbt-realistic"}[of]
    document = store.fleet.json("artifacts", "show", text)
    assert (document["id"], document["jobs"][0]["id"]) == (sha256(BUNDLE), job)


def test_show_tells_people_what_it_is(store: Store, job: str) -> None:
    out = store.fleet.run("artifacts", "show", "gbt-realistic").stdout
    assert out.startswith("gbt realistic  2.87 MiB\n")
    assert f"gbt_realistic/{sha256(BUNDLE)}/bundle.tar" in out
    assert job in out


def test_what_is_not_there_is_said_by_name(store: Store, job: str) -> None:
    waiting = store.fleet.submit("--name", "waiting", "--gpus", "8", "--", "true")
    for text, said in (("nothing", "no artifact and no job 'nothing'"), (waiting, "has no artifact: it is pending")):
        done = store.fleet.run("artifacts", "show", text)
        assert (done.returncode, done.stdout) == (5, "")
        assert said in done.stderr
    array = store.fleet.submit("--array", "2", "--gpus", "8", "--", "true")
    done = store.fleet.run("artifacts", "get", array)
    assert (done.returncode, f"{array}.0" in done.stderr) == (2, True)


def test_get_fetches_the_file_and_says_where_it_is(store: Store, job: str, tmp_path: Path) -> None:
    done = store.fleet.run("artifacts", "get", "gbt-realistic", cwd=tmp_path)
    name = f"gbt_realistic-{sha256(BUNDLE)[:12]}.tar"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name}\n", "")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == BUNDLE
    assert store.fleet.run("artifacts", "get", "gbt-realistic", cwd=tmp_path).returncode == 0, "it is there already"
    folder = tmp_path / "folder"
    folder.mkdir()
    for to, place in ((folder, folder / name), (tmp_path / "new" / "own.tar", tmp_path / "new" / "own.tar")):
        done = store.fleet.run("artifacts", "get", job, "--to", str(to))
        assert (done.stdout, place.read_bytes()) == (f"{place}\n", BUNDLE), done.stderr


def test_get_does_not_write_over_something_else(store: Store, job: str, tmp_path: Path) -> None:
    (tmp_path / "mine.tar").write_text("mine")
    done = store.fleet.run("artifacts", "get", job, "--to", str(tmp_path / "mine.tar"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is there already" in done.stderr
    done = store.fleet.run("artifacts", "get", job, "--extract", "--to", str(tmp_path / "mine.tar"))
    assert (done.returncode, (tmp_path / "mine.tar").read_text()) == (2, "mine")


@pytest.mark.parametrize("compressed", [False, True])
def test_get_unpacks_where_that_is_asked_for(store: Store, tmp_path: Path, compressed: bool) -> None:
    plain = archive(*(entry(name, data) for name, data in FILES.items()), entry(f"{compressed}", b"x"))
    bundle = announced(plain) if compressed else plain
    job = store.trained(bundle, "", model="m", mode=str(compressed))
    done = store.fleet.run("artifacts", "get", job, "--extract", "--to", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out'}\n"), done.stderr
    for name, data in FILES.items():
        assert (tmp_path / "out" / name).read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    store.fleet.run("artifacts", "get", job, "-x", "--to", str(tmp_path / "out"))
    assert (tmp_path / "out" / f"m_{compressed}-{sha256(bundle)[:12]}").is_dir()


def test_a_hostile_bundle_is_not_unpacked(store: Store, tmp_path: Path) -> None:
    bundle = archive(entry("good", b"1"), entry("ln", type=tarfile.SYMTYPE, linkname="/etc"), entry("ln/x", b"1"))
    job = store.trained(bundle, "hostile")
    done = store.fleet.run("artifacts", "get", job, "--extract", "--to", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "a symbolic link" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


class Cutting(BaseHTTPRequestHandler):
    """A proxy before the hub that cuts every download after a while, and remembers where each began."""

    server: "CuttingProxy"

    def do_GET(self) -> None:
        headers = {name: self.headers[name] for name in ("Authorization", "Range", "If-Range") if name in self.headers}
        answer = urllib3.request("GET", self.server.hub + self.path, headers=headers)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        self.end_headers()
        if self.path.startswith("/v1/model/"):
            self.server.began.append(self.headers.get("Range", ""))
            self.wfile.write(answer.data[: self.server.cut_after])
            self.close_connection = True
        else:
            self.wfile.write(answer.data)

    def log_message(self, *_: Any) -> None:
        pass


class CuttingProxy(ThreadingHTTPServer):
    def __init__(self, hub: str, cut_after: int) -> None:
        super().__init__(("127.0.0.1", 0), Cutting)
        self.hub, self.cut_after, self.began = hub, cut_after, list[str]()


def test_a_download_that_is_cut_goes_on_where_it_was(store: Store, job: str, tmp_path: Path) -> None:
    proxy = CuttingProxy(store.fleet.url, 18 * 65_536)
    serving = threading.Thread(target=proxy.serve_forever)
    serving.start()
    try:
        url = f"http://127.0.0.1:{proxy.server_port}"
        done = store.fleet.run("--hub", url, "artifacts", "get", job, "--to", str(tmp_path / "b.tar"))
    finally:
        proxy.shutdown()
        serving.join()
        proxy.server_close()
    assert (done.returncode, (tmp_path / "b.tar").read_bytes()) == (0, BUNDLE), done.stderr
    assert proxy.began == ["", "bytes=1179648-", "bytes=2359296-"]


def test_what_an_earlier_download_left_is_used_and_damage_in_it_found_out(
    store: Store, job: str, tmp_path: Path
) -> None:
    part = tmp_path / f".b.tar.{sha256(BUNDLE)[:12]}.part"
    part.write_bytes(b"?" + BUNDLE[1:2_000_000])
    done = store.fleet.run("artifacts", "get", job, "--to", str(tmp_path / "b.tar"))
    assert (done.returncode, "hashes to" in done.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []
    part.write_bytes(BUNDLE)
    assert store.fleet.run("artifacts", "get", job, "--to", str(tmp_path / "b.tar")).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


def test_verify_finds_a_damaged_artifact(store: Store, job: str) -> None:
    good = store.fleet.run("artifacts", "verify", "gbt-realistic")
    assert (good.returncode, "✓ good" in good.stdout) == (0, True)
    assert store.fleet.run("artifacts", "verify").returncode == 2
    assert store.fleet.run("artifacts", "verify", job, "--all").returncode == 2
    bundle = archive(entry("to be damaged", b"1"))
    store.trained(bundle, "unlucky", model="m")
    path = store.stored(bundle)
    path.chmod(0o600)
    path.write_bytes(bundle[:-1] + b"?")
    done = store.fleet.run("artifacts", "verify", "--all", "--json")
    assert done.returncode == 1
    assert [one["id"] for one in json.loads(done.stdout)["artifacts"] if not one["ok"]] == [sha256(bundle)]
    told = store.fleet.run("artifacts", "verify", "unlucky", "gbt-realistic")
    assert (told.returncode, told.stdout.splitlines()[-1]) == (1, "1 of 2 artifacts damaged")


def test_gc_tells_and_removes_what_nobody_needs(store: Store, job: str) -> None:
    old = b"left by a run that failed"
    store.bring(old)
    assert store.fleet.run("artifacts", "gc").stdout == "nothing removed\n"
    os.utime(store.stored(old), (time.time() - 40 * 86400,) * 2)
    told = store.fleet.run("artifacts", "gc", "--older-than", "30d", "--dry-run")
    assert told.stdout.splitlines()[1:] == [f"{sha256(old)[:12]}  25 B", "1 artifact would be removed, 25 B"]
    assert store.fleet.json("artifacts", "gc", "--older-than", "50d")["removed"] == []
    done = store.fleet.json("artifacts", "gc", "--older-than", "30d")
    assert done == {
        "removed": [{"id": sha256(old), "size": 25}],
        "bytes": 25,
        "dry_run": False,
        "older_than_s": 30 * 86400,
    }
    assert not store.stored(old).exists()
    assert store.stored(BUNDLE).exists()
    wrong = store.fleet.run("artifacts", "gc", "--older-than", "soon")
    assert (wrong.returncode, "--older-than" in wrong.stderr) == (2, True)
