"""What programs write of themselves: lines for people, or one JSON object a line."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.process_fleet import OSTLER, ProcessFleet, until

from ostler.cli.main import run
from ostler.logformat import Lines


def test_a_hub_and_a_worker_write_one_object_a_line(tmp_path: Path) -> None:
    fleet = ProcessFleet(tmp_path)
    fleet.environment["OSTLER_LOG_FORMAT"] = "json"
    files = {name: tmp_path / f"{name}.log" for name in ("hub", "worker")}
    with files["hub"].open("wb") as log:
        hub = subprocess.Popen([*OSTLER, "hub", "--port", str(fleet.port)], env=fleet.environment, stderr=log)
    until(lambda: (fleet.state / "hub.url").exists(), "the hub listens", process=hub)
    with files["worker"].open("wb") as log:
        arguments = ["worker", "--name", "box", "--log-format", "json", "--drain-seconds", "0"]
        worker = subprocess.Popen([*OSTLER, *arguments], env=fleet.environment, stderr=log)
    until(lambda: "registered at" in files["worker"].read_text(), "the worker has registered", process=worker)
    for process in (worker, hub):
        process.terminate()
        process.wait(60)
    told = {name: [json.loads(line) for line in file.read_text().splitlines()] for name, file in files.items()}
    assert {"time", "level", "logger", "message"} <= told["hub"][0].keys()
    assert any(one["message"].startswith("hub listens on") for one in told["hub"])
    assert {one["worker"] for one in told["worker"]} == {"box"}


def test_a_record_says_of_which_task_it_tells_and_what_went_wrong() -> None:
    try:
        raise ValueError("no such disk")
    except ValueError:
        record = logging.LogRecord("ostler.hub", logging.ERROR, "", 1, "bad %s", ("luck",), sys.exc_info())
    record.task, record.attempt = "sweep.17", "a1"
    told = json.loads(Lines({"worker": "box"}).format(record))
    assert (told["level"], told["message"]) == ("error", "bad luck")
    assert (told["worker"], told["job"], told["task"], told["attempt"]) == ("box", "sweep", "sweep.17", "a1")
    assert told["error"].endswith("ValueError: no such disk")


def test_a_line_stays_one_object_in_any_encoding_and_for_what_nobody_caught() -> None:
    script = (
        "import logging, threading, warnings\n"
        "from ostler.logformat import set_up\n"
        "set_up('info', 'json')\n"
        "logging.error('caf\\xe9 \\u2028 \\x85')\n"
        "warnings.warn('old')\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\n"
        "thread.start(); thread.join()\n"
        "raise ValueError('no such disk')\n"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:backslashreplace"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE)
    told = [json.loads(line) for line in done.stderr.decode("latin-1").splitlines()]
    assert told[0]["message"] == "caf\xe9 \u2028 \x85"
    assert "old" in told[1]["message"]
    assert [one["message"] for one in told[2:]] == [
        "a bug: ZeroDivisionError: division by zero",
        "a bug: ValueError: no such disk",
    ]
    assert told[3]["error"].endswith("ValueError: no such disk")


def test_what_the_web_server_says_goes_the_same_way() -> None:
    script = (
        "import logging, sys\n"
        "from ostler.logformat import set_up\n"
        "set_up('info', 'json')\n"
        "from ostler.hub.server import Server\n"
        "Server(None)\n"
        "logging.getLogger('uvicorn.error').error('Exception in ASGI application')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE)
    [told] = [json.loads(line) for line in done.stderr.splitlines()]
    assert told["message"] == "Exception in ASGI application"


def test_an_unknown_format_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSTLER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OSTLER_TOKEN", "x")
    assert run(["hub", "--log-format", "xml"]) == 2
    assert capsys.readouterr().err == "ostler: --log-format: 'xml' is not one of text, json\n"
    monkeypatch.setenv("OSTLER_LOG_FORMAT", "xml")
    assert run(["worker"]) == 2
    assert capsys.readouterr().err == "ostler: OSTLER_LOG_FORMAT: 'xml' is not one of text, json\n"
    assert not (tmp_path / "state").exists()
