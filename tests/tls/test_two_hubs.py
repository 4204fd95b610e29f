"""Two hubs on one store: one authority, so that who knows one of them knows both."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.two_hub_fleet import TAKES_OVER_S, TwoHubFleet
from tests.ledger.server import server
from tests.process_fleet import until
from tests.tls.papers import context_for

import ostler
from ostler.client import Patience

LONG = Patience(tries=100, first_pause_s=0.1, growth=1.0)


class TlsTwoHubFleet(TwoHubFleet):
    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder, address)
        self.urls = {name: url.replace("http:", "https:") for name, url in self.urls.items()}
        self.url = ",".join(self.urls.values())
        self.environment |= {"OSTLER_TLS": "auto", "OSTLER_HUB": self.url, "OSTLER_CA": str(self.store / "ca.pem")}

    def meet(self) -> None:
        self.state.mkdir()
        self.environment["OSTLER_TOKEN"] = f"@{self.store / 'join.token'}"
        self.token = (self.store / "admin.token").read_text().strip()
        self.client = ostler.connect(self.url, self.token, self.state, patience=LONG, ca=str(self.store / "ca.pem"))
        self.hub = self.client.hub

    def _ask(self, url: str, timeout_s: float, request: dict[str, Any]) -> tuple[int, dict[str, Any], Any]:
        if not (self.store / "ca.pem").exists():
            raise OSError("no hub has started yet")
        trusting = urllib.request.HTTPSHandler(context=context_for(self.store))
        urllib.request.install_opener(urllib.request.build_opener(trusting))
        try:
            return super()._ask(url, timeout_s, request)
        finally:
            urllib.request.install_opener(urllib.request.build_opener())


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[TlsTwoHubFleet]:
    made = TlsTwoHubFleet(tmp_path, server().new_database())
    (tmp_path / "ostler.toml").touch()
    made.start_hub("a")
    made.await_role("a", "leader")
    made.start_hub("b")
    made.await_role("b", "standby")
    made.meet()
    made.start_worker("box")
    made.await_workers("box")
    try:
        yield made
    finally:
        made.close()


def test_who_knows_one_hub_knows_the_one_that_follows_it_and_so_do_replaced_tokens(fleet: TlsTwoHubFleet) -> None:
    job = fleet.hub.submit({"command": ["true"]})["id"]
    assert fleet.client.wait(job, timeout=60)["state"] == "succeeded"
    fleet.hub.rotate_token("admin")
    fleet.token = (fleet.store / "admin.token").read_text().strip()
    until(lambda: fleet.get("b", "/v1/me")[0] == 200, "the standby takes the operator's new token")
    for name in "ab":
        assert (fleet.folder / f"hub-{name}" / "admin.token").read_text().strip() == fleet.token
    assert not (fleet.folder / "hub-a" / "ca.key").exists() and (fleet.store / "ca.key").exists()
    fleet.kill("a")
    fleet.await_role("b", "leader")
    ca = str(fleet.store / "ca.pem")
    with ostler.connect(fleet.url, fleet.token, fleet.state, patience=LONG, ca=ca) as client:
        until(lambda: client.hub.worker("box")["status"] == "ready", "the worker has followed", TAKES_OVER_S)
        job = client.hub.submit({"command": ["true"]})["id"]
        assert client.wait(job, timeout=60)["state"] == "succeeded"
