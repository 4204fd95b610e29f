"""A client that knows several hubs, of which one leads."""

import threading
from http.server import BaseHTTPRequestHandler

import pytest
from tests.client.scripted_hub import ScriptedHub, Step, drop, reply, stream
from tests.client.test_http import QUICK
from tests.ports import free_port

from ostler import config
from ostler.client import transport
from ostler.client.errors import HubUnreachable
from ostler.client.http import Hub
from ostler.domain.errors import BadInput

NOWHERE = f"http://127.0.0.1:{free_port()}"


def standby(leader: str = "") -> Step:
    def step(handler: BaseHTTPRequestHandler) -> None:
        body = b'{"detail": "this hub stands by"}'
        handler.send_response(503)
        handler.send_header("Ostler-Leader", leader)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return step


def knowing(*hubs: str) -> Hub:
    return Hub(",".join(hubs), "secret", patience=QUICK)


def test_whoever_asks_a_standby_is_led_to_the_leader_and_stays_there() -> None:
    with (
        ScriptedHub(reply({"state": "pending"})) as leader,
        ScriptedHub(standby(leader.url)) as waiting,
        knowing(waiting.url) as hub,
    ):
        hub.requeue("j1")
        hub.job("j1")
        assert (waiting.paths, leader.paths) == (["/v1/jobs/j1/requeue"], ["/v1/jobs/j1/requeue", "/v1/jobs/j1"])
        assert leader.requests[0].headers["Authorization"] == "Bearer secret"
        assert hub.address == leader.url


def test_an_address_where_nobody_listens_costs_no_pause() -> None:
    with ScriptedHub(reply({"id": "j1"})) as leader, knowing(NOWHERE, leader.url) as hub:
        hub.submit({"command": ["true"]})
        hub.requeue("j1")
    assert len(leader.requests) == 2


def test_while_no_hub_leads_each_is_asked_again_until_one_does() -> None:
    with (
        ScriptedHub(standby(), standby(), reply({"id": "j1"})) as one,
        ScriptedHub(standby(NOWHERE)) as other,
        knowing(other.url, one.url) as hub,
    ):
        assert hub.submit({"command": ["true"]}) == {"id": "j1"}
    assert len(one.requests) == 3
    assert len({request.headers["Idempotency-Key"] for request in [*one.requests, *other.requests]}) == 1


def test_tries_are_bounded_however_many_hubs_there_are() -> None:
    with ScriptedHub(standby()) as one, ScriptedHub(drop) as other, knowing(one.url, other.url) as hub:
        with pytest.raises(HubUnreachable, match=f"no hub answers at {one.url},{other.url}"):
            hub.submit({"command": ["true"]})
        assert len(one.requests) == len(other.requests) == QUICK.tries
        with pytest.raises(HubUnreachable):
            hub.requeue("j1")
    assert len(other.requests) == QUICK.tries + 1, "what may have arrived is not sent elsewhere"


def test_a_hub_that_stands_still_is_left_for_one_that_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HASTY_S", 0.2)
    goes_on = threading.Event()
    still: Step = lambda _: goes_on.wait(60) and None  # noqa: E731
    with ScriptedHub(still) as paused, ScriptedHub(reply({"jobs": [1]})) as leader:
        with knowing(paused.url, leader.url) as hub:
            assert hub.jobs() == {"jobs": [1]}
        goes_on.set()


def test_a_hub_that_is_slow_and_still_leads_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HASTY_S", 0.2)
    asked_again = threading.Event()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        asked_again.wait(60)

    def again(handler: BaseHTTPRequestHandler) -> None:
        threading.Event().wait(0.5)
        reply({"jobs": [1]})(handler)
        asked_again.set()

    with ScriptedHub(slow, again) as leader, ScriptedHub(standby(leader.url)) as waiting:
        with knowing(leader.url, waiting.url) as hub:
            assert hub.jobs() == {"jobs": [1]}
        assert len(leader.requests) == 2


def test_a_stream_is_opened_where_the_leader_is() -> None:
    event = b"id: 7\nevent: job\ndata: {}\n\n"
    with (
        ScriptedHub(stream(event, content_type="text/event-stream")) as leader,
        ScriptedHub(standby(leader.url)) as waiting,
        knowing(NOWHERE, waiting.url) as hub,
    ):
        assert next(hub.events())["seq"] == 7


def test_several_addresses_are_one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_HUB", "http://a:1/ , https://b,http://a:1")
    assert config.hub_url() == "http://a:1,https://b"
    with pytest.raises(BadInput, match="'b:2' is not an address"):
        config.hub_url("http://a:1,b:2")


@pytest.mark.parametrize("url", ["http://", "http://a,http://b", "http://a b", "http://höf", "http://[", "a:1"])
def test_a_hub_tells_others_one_address_that_fits_into_a_header_and_a_list(url: str) -> None:
    with pytest.raises(BadInput, match="is not an address; write it like"):
        config.own_url(url, "")
    assert config.own_url("https://hub.example:7600/", "") == "https://hub.example:7600"
