"""The client's calls: what goes over the wire, uploads that are cut, and what a hub that does not want says."""

import hashlib
import os
import socket
import threading
from pathlib import Path

import pytest
from tests.client.scripted_hub import ScriptedHub, drop, problem, reply
from tests.pull.scripted_hub import ScriptedPullHub

from ostler import pull

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "LONGEST_PAUSE_S", 0.01)


@pytest.fixture
def client(hub: ScriptedPullHub) -> pull.Client:
    return pull.Client(hub.url, "a-token")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle.tar"
    path.write_bytes(os.urandom(5 * MIB + 12345))
    return path


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Calls


def test_a_claim_is_a_job_or_the_reason_why_there_is_none(hub: ScriptedPullHub, client: pull.Client) -> None:
    hub.reason = "gbt: no CUDA"
    assert client.claim("pi", {"cpu_cores": 2}) is None
    assert client.reason == "gbt: no CUDA"
    hub.add("true")
    job = client.claim("pi", {"cpu_cores": 2})
    assert job is not None
    assert (job["job_id"], job["command"], client.reason) == ("j", ["true"], "")
    assert hub.said[0].body == {"hostname": "pi", "capability": {"cpu_cores": 2}}


def test_only_what_there_is_to_say_is_said(hub: ScriptedPullHub, client: pull.Client) -> None:
    hub.artifacts["a" * 64] = b""
    assert client.heartbeat("j", "pi") is False
    assert client.heartbeat("j", "pi", "a1", {"loss": 0.5}) is False
    client.complete("j", "pi", "a1", artifact_id="a" * 64, metrics={"loss": 0.1})
    client.complete("j", "pi")
    client.fail("j", "pi", "a1", error="it broke", exit_code=3)
    client.fail("j", "pi", error="leaving", returned=True)
    assert [one.body for one in hub.said] == [
        {"hostname": "pi"},
        {"hostname": "pi", "attempt": "a1", "progress": {"loss": 0.5}},
        {"hostname": "pi", "attempt": "a1", "artifact_id": "a" * 64, "metrics": {"loss": 0.1}},
        {"hostname": "pi"},
        {"hostname": "pi", "attempt": "a1", "error": "it broke", "exit_code": 3},
        {"hostname": "pi", "error": "leaving", "returned": True},
    ]
    hub.cancel = True
    assert client.heartbeat("j", "pi") is True


def test_a_path_in_the_hub_s_address_goes_before_every_call(tmp_path: Path, bundle: Path) -> None:
    with ScriptedPullHub(base="/fleet") as hub:
        client = pull.Client(f"{hub.url}/", "a-token")
        assert client.claim("pi", {}) is None
        client.upload(bundle, sha256_of(bundle))
        assert list(hub.artifacts) == [sha256_of(bundle)]


def test_a_refusal_says_what_the_hub_said(hub: ScriptedPullHub) -> None:
    with pytest.raises(pull.Refused, match="the hub answers 401: bring a valid token") as caught:
        pull.Client(hub.url, "another").claim("pi", {})
    assert (caught.value.status, caught.value.detail) == (401, "bring a valid token")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 507])
def test_a_hub_that_cannot_right_now_counts_as_away(status: int) -> None:
    with (
        ScriptedHub(problem(status, "come back later")) as scripted,
        pytest.raises(pull.Unreachable, match=f"answers {status}: come back later"),
    ):
        pull.Client(scripted.url, "t").heartbeat("j", "pi")


def test_a_hub_that_is_not_there_or_breaks_off_is_unreachable() -> None:
    with ScriptedHub(drop) as scripted:
        client = pull.Client(scripted.url, "t")
        with pytest.raises(pull.Unreachable, match="does not answer"):
            client.claim("pi", {})
    with pytest.raises(pull.Unreachable, match="Connection refused"):
        client.claim("pi", {})


def test_somebody_who_says_yes_but_is_no_hub_is_not_believed() -> None:
    page = reply(b"<html>Please log in to the hotel's network</html>", content_type="text/html")
    with ScriptedHub(page) as scripted, pytest.raises(pull.Refused, match="Please log in"):
        pull.Client(scripted.url, "t").claim("pi", {})


def test_of_several_hubs_the_next_is_asked_when_one_is_away_or_stands_by(hub: ScriptedPullHub) -> None:
    with ScriptedHub(problem(503, "this hub stands by")) as waiting:
        client = pull.Client(f"http://127.0.0.1:1,{waiting.url}, {hub.url}", "a-token")
        assert pull.persist(lambda: client.claim("pi", {})) is None
        assert client.claim("pi", {}) is None
    assert (len(waiting.requests), len(hub.said)) == (1, 2), "and the one that answered is stayed with"


@pytest.mark.parametrize("hub", ["hub.example:7600", "ftp://hub.example", "http://", "", "http://hub:port"])
def test_an_address_that_is_none_is_refused_at_once(hub: str) -> None:
    with pytest.raises(ValueError, match=r"address of a hub|[Pp]ort"):
        pull.Client(hub, "t")


@pytest.mark.parametrize("token", ["", "two\nlines", "schlüssel"])
def test_a_token_that_is_none_is_refused_at_once(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        pull.Client("http://hub.example", token)


def test_a_log_of_which_the_hub_has_a_part_goes_on_from_there(hub: ScriptedPullHub, client: pull.Client) -> None:
    assert client.append_log("j", "a1", 0, b"one ") == 4
    assert client.append_log("j", "a1", 0, b"one two ", final=True) == 8
    assert client.append_log("j", "a1", 0, b"one two ", final=True) == 8
    assert hub.logs["a1"] == b"one two "


# Uploads


def test_a_file_is_brought_in_one_go_and_only_once(hub: ScriptedPullHub, client: pull.Client, bundle: Path) -> None:
    client.upload(bundle, sha256_of(bundle))
    client.upload(bundle, sha256_of(bundle))
    assert hub.artifacts == {sha256_of(bundle): bundle.read_bytes()}
    assert [(one.content_range, one.size) for one in hub.uploads] == [("", bundle.stat().st_size)]


def test_a_cut_upload_goes_on_from_where_it_was_cut(hub: ScriptedPullHub, client: pull.Client, bundle: Path) -> None:
    size = bundle.stat().st_size
    hub.cut_after = [2 * MIB, MIB + 7]
    client.upload(bundle, sha256_of(bundle))
    assert hub.artifacts == {sha256_of(bundle): bundle.read_bytes()}
    assert [(one.content_range, one.size) for one in hub.uploads] == [
        ("", 2 * MIB),
        (f"bytes {2 * MIB}-{size - 1}/{size}", MIB + 7),
        (f"bytes {3 * MIB + 7}-{size - 1}/{size}", size - 3 * MIB - 7),
    ]


def test_a_part_that_was_damaged_is_brought_again_from_its_beginning(
    hub: ScriptedPullHub, client: pull.Client, bundle: Path
) -> None:
    hub.cut_after, hub.damages_parts = [MIB], True
    client.upload(bundle, sha256_of(bundle))
    assert hub.artifacts == {sha256_of(bundle): bundle.read_bytes()}
    assert [one.content_range.partition("-")[0] for one in hub.uploads] == ["", f"bytes {MIB}", ""]


def test_a_file_that_is_not_what_it_is_called_is_refused_after_one_try(
    hub: ScriptedPullHub, client: pull.Client, bundle: Path
) -> None:
    with pytest.raises(pull.Refused, match="422: the hash differs"):
        client.upload(bundle, "a" * 64)
    assert len(hub.uploads) == 1
    assert not hub.artifacts


def test_so_many_tries_in_vain_are_enough(hub: ScriptedPullHub, client: pull.Client, bundle: Path) -> None:
    hub.cut_after = [0] * 10
    with pytest.raises(pull.Unreachable):
        client.upload(bundle, sha256_of(bundle), tries=3)
    assert len(hub.uploads) == 3


def test_an_upload_ends_when_its_caller_says_so(hub: ScriptedPullHub, client: pull.Client, bundle: Path) -> None:
    pieces = iter(range(3))

    def check() -> None:
        if next(pieces, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.upload(bundle, sha256_of(bundle), check)
    assert not hub.artifacts


def test_an_answer_that_did_not_wait_for_the_body_is_heard(bundle: Path) -> None:
    """Of a hub, or a proxy before it, that knows at once that it will not have this."""
    answers = [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 413 Too Large\r\n\r\nnot so much"]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_at_once() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(10)
                    connection.sendall(answer)

        answering = threading.Thread(target=answer_at_once)
        answering.start()
        client = pull.Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "t")
        with pytest.raises(pull.Refused, match="413: not so much"):
            client.upload(bundle, sha256_of(bundle))
        answering.join()
