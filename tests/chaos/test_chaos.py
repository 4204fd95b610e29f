"""The campaign of real faults: that it runs from end to end, and that a promise that is broken is found and said."""

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.__main__ import FAULTS, main
from chaos.load import Sent, Terms
from chaos.relay import Relay
from chaos.report import begun, page
from chaos.trial import Ground, Trial, fleet_under_load
from tests.process_fleet import until

from chaos import program

FEW = Terms(weights={"short": 1.0}, per_s=20.0)


def test_a_campaign_of_two_kills_says_what_was_tried_and_that_everything_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [
        "--kills",
        "1",
        "--scale",
        "0.1",
        "--seed",
        "7",
        "--report",
        str(tmp_path / "report"),
        "--folder",
        str(tmp_path),
    ]
    monkeypatch.setattr("sys.argv", ["chaos", "kills", *options])
    assert main() == 0
    [trial] = json.loads((tmp_path / "report" / "report.json").read_text())["trials"]
    assert trial["tried"] == {"kill -9 of the hub": 1, "kill -9 of a worker": 1}
    assert trial["figures"]["hub starts"] == 2 and trial["figures"]["jobs acknowledged"] > 0
    assert all(promise["broken"] == [] for promise in trial["promises"])
    assert "all 12 held" in (tmp_path / "report" / "report.md").read_text()


def test_whatever_is_lost_or_runs_twice_is_found(tmp_path: Path) -> None:
    """The tasks' own word is changed before it is compared."""
    trial = Trial("tampered", "", 7)
    with fleet_under_load(
        Ground(tmp_path, 7, tell=lambda _: None), trial, ("ash",), times=program.PLAIN, terms=FEW
    ) as here:
        one, two = (here.load.submit("short") for _ in range(2))
        assert one and two
        here.load.stop()
        for sent in here.load.acknowledged:
            here.fleet.client.wait(sent, timeout=60)
        told = [" ".join(line) for line in here.diary.lines() if (line.word, line.task) != ("end", two.id)]
        told += [f"overlap {one.id} another 1 0", f"begin {one.id} another 1 0"]
        (here.diary.folder / "lines").write_text("\n".join(told) + "\n")
        here.load.acknowledged["ghost"] = Sent("ghost", "short-ghost", "short")
    broken = {promise.text: " ".join(promise.broken) for promise in trial.promises if promise.broken}
    assert broken["no acknowledged job is lost, and none is there twice"].startswith("ghost ")
    recorded = broken["the ledger says what ran, and what ran is in the ledger"]
    assert two.id in recorded and "another" in recorded
    assert one.id in broken["no task ran twice at once"] and two.id not in broken["no task ran twice at once"]
    assert one.id in broken["no task was begun twice"]
    assert not trial.sound
    campaign = begun("a test")
    campaign.trials.append(trial)
    assert "**BROKEN** for 1" in page(campaign) and not campaign.sound


def test_every_fault_is_in_the_readme() -> None:
    text = (Path(__file__).parents[2] / "chaos" / "README.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE) == list(FAULTS)


@pytest.fixture
def wire() -> Iterator[tuple[Relay, socket.socket, socket.socket]]:
    """A relay between two sockets in the place of network devices: its hub's end, and its worker's."""
    hub, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    worker, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    orders, told = os.pipe()
    relay = Relay(near.fileno(), far.fileno(), 7, orders)
    thread = threading.Thread(target=relay.run)
    thread.start()
    for end in (hub, worker):
        end.settimeout(10)
    yield relay, hub, worker
    os.close(told)
    thread.join(60)
    for end in (hub, near, worker, far):
        end.close()
    os.close(orders)


def test_a_wire_that_is_cut_in_one_direction_carries_the_other(
    wire: tuple[Relay, socket.socket, socket.socket],
) -> None:
    relay, hub, worker = wire
    relay.obey({"up": {"open": False}})
    worker.send(b"lost")
    hub.send(b"down")
    assert worker.recv(100) == b"down"
    until(lambda: relay.obey({})["up"]["dropped"], "it is dropped")
    relay.obey({"up": {"open": True}})
    worker.send(b"up")
    assert hub.recv(100) == b"up"


def test_packets_that_are_late_come_in_order_and_some_of_many_are_lost(
    wire: tuple[Relay, socket.socket, socket.socket],
) -> None:
    relay, hub, worker = wire
    relay.obey({"up": {"delay_s": 0.05}})
    for number in range(20):
        worker.send(b"%d" % number)
    assert [int(hub.recv(100)) for _ in range(20)] == list(range(20))
    relay.obey({"up": {"delay_s": 0.0, "loss": 0.5}})
    for number in range(100):
        worker.send(b"%d" % number)
    until(lambda: sum(relay.obey({})["up"].values()) == 120, "all have been looked at")
    assert 10 < relay.obey({})["up"]["dropped"] < 90
