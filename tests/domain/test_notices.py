"""Who is told of what becomes of a job: what a spec and an operator may write, and where a hub goes for others."""

import ipaddress
import socket

import pytest

from ostler.domain.errors import BadInput
from ostler.domain.notices import problems, read_notify
from ostler.hub.outbound import Forbidden, is_allowed, judge_literal, judged_socket

TEAM = {"targets": {"team": {"url": "https://hooks.example/a"}}}


@pytest.mark.parametrize("text", ["https://hooks.example/a?b=c", "http://[2001:db8::1]:8080/x", "ntfy:my-runs", "team"])
def test_an_address_a_topic_and_a_name_may_be_told(text: str) -> None:
    assert problems([text], []) == []


@pytest.mark.parametrize(
    "text", ["", "ftp://x/y", "https://", "https://x:99999/", "https://a b/", "ntfy:", "ntfy:a/b", "two words", "-rf"]
)
def test_anything_else_may_not(text: str) -> None:
    assert [field for field, _ in problems([text], [])] == ["notify"]


def test_when_without_whom_and_unknown_events_are_mistakes() -> None:
    assert [field for field, _ in problems([], ["end"])] == ["notify_on"]
    assert problems(["team"], ["lunch"]) == [("notify_on", "'lunch' is not one of end, failed, lost, preempted")]
    assert problems(["team"] * 9, []) == [("notify", "a job tells at most 8")]


@pytest.mark.parametrize(
    ("table", "where"),
    [
        ({"target": {}}, "notify.target"),
        ({"allow": "10.0.0.0/8"}, "notify.allow"),
        ({"allow": ["10.0.0.1/8"]}, "notify.allow"),
        ({"ntfy": "ntfy.sh"}, "notify.ntfy"),
        ({"targets": {"a": {}}}, "notify.targets.a"),
        ({"targets": {"a": {"url": "https://x/", "topic": "t"}}}, "notify.targets.a"),
        ({"targets": {"a": {"url": "file:///etc"}}}, "notify.targets.a.url"),
        ({"targets": {"a": {"topic": "t", "on": ["lunch"]}}}, "notify.targets.a.on"),
        ({"targets": {"a": {"command": "mail"}}}, "notify.targets.a.command"),
        ({"targets": {"a": {"command": []}}}, "notify.targets.a"),
        ({"targets": {"a": {"url": "https://x/", "trusted": True}}}, "notify.targets.a.trusted"),
    ],
)
def test_a_mistake_of_the_operator_is_named_by_its_place(table: dict[str, object], where: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_notify(table)
    assert caught.value.errors[0][0] == where


def test_the_operators_targets_are_trusted_and_networks_are_read() -> None:
    found = read_notify({**TEAM, "allow": ["10.0.0.0/8", "fd00::/8"]})
    assert found.targets["team"].trusted
    assert [str(network) for network in found.allow] == ["10.0.0.0/8", "fd00::/8"]


INSIDE = [
    "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::",
]  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
def test_a_job_cannot_send_the_hub_into_the_house(address: str) -> None:
    assert not is_allowed(ipaddress.ip_address(address), ())
    with pytest.raises(Forbidden):
        judge_literal(address, ())


@pytest.mark.parametrize("address", ["fec0::1", "::127.0.0.1", "64:ff9b:1::7f00:1"])
def test_old_and_local_spellings_lead_there_as_little(address: str) -> None:
    assert not is_allowed(ipaddress.ip_address(address), ())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "::ffff:127.0.0.1", "2130706433", "127.1", "0", "127.0.0.1.", "localhost"]
)
def test_no_socket_is_made_for_what_is_no_public_address_as_it_stands(host: str) -> None:
    make = judged_socket(())
    with pytest.raises(Forbidden):
        make((socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 80)))
    make((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("1.1.1.1", 80))).close()


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_it_may_send_it_to_the_public_network(address: str) -> None:
    assert is_allowed(ipaddress.ip_address(address), ())


def test_what_the_operator_allows_is_allowed_in_every_spelling() -> None:
    allow = (ipaddress.ip_network("10.0.0.0/8"),)
    assert is_allowed(ipaddress.ip_address("10.1.2.3"), allow)
    assert is_allowed(ipaddress.ip_address("::ffff:10.1.2.3"), allow)
    assert not is_allowed(ipaddress.ip_address("192.168.0.1"), allow)
