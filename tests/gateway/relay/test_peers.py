"""Other gateways as instances: with TLS, below a path of theirs, and with a key that is shown to them alone."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.gateway.relay.running_relay import Client, Heard, Line, ModelServer, RunningRelay, Script, chat, echo
from tests.gateway.relay.test_tunnel import UPGRADE, mirror

from ostler.gateway.control import Arrived, Done, Grant, Open, Refuse, Way
from ostler.gateway.relay.limits import Limits

EXTENSIONS = "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n"


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem`, and `host.pem` with `host.key` for localhost, which it has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: apt-get install openssl")
    folder = tmp_path_factory.mktemp("authority")
    (folder / "extensions").write_text(EXTENSIONS)
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(folder, *new, "-x509", "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2")
    openssl(folder, *new, "-subj", "/CN=localhost", "-keyout", "host.key", "-out", "host.csr")
    signs = ("x509", "-req", "-in", "host.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    openssl(folder, *signs, "-extfile", "extensions", "-out", "host.pem")
    return folder


class Peer(ModelServer):
    def __init__(self, script: Script, authority: Path) -> None:
        super().__init__(script)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(authority / "host.pem", authority / "host.key")

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**22, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]


@pytest.fixture
async def trusting(tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningRelay]:
    """A relay to which the test's authority is one of the machine's."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    async with RunningRelay.open(tmp_path, Limits(linger_s=0.1, look_every_s=0.05)) as relay:
        yield relay


async def peer(relay: RunningRelay, authority: Path, script: Script = echo) -> Peer:
    server = Peer(script, authority)
    await server.start()
    relay._servers.append(server)
    return server


async def granted(relay: RunningRelay, host: str, port: int, way: Way, path: str = "/v1/chat/completions") -> Client:
    client = await relay.client()
    client.ask(chat(), path)
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Grant(arrived.request, "peer-p", host, port, way))
    return client


async def test_a_peer_sees_its_own_path_its_own_key_and_its_own_name(trusting: RunningRelay, authority: Path) -> None:
    server = await peer(trusting, authority)
    way = Way(tls=True, prefix="/openai/", api_key="theirs")
    for _ in range(2):
        client = await granted(trusting, "localhost", server.port, way)
        assert (await client.reply()).json["target"] == "/openai/v1/chat/completions"
    heard = server.heard[-1]
    assert heard.headers["authorization"] == "Bearer theirs"
    assert heard.headers["host"] == f"localhost:{server.port}"
    assert heard.json == chat()
    assert server.connections == 1


async def test_bytes_and_streams_pass_through_tls_as_they_are(trusting: RunningRelay, authority: Path) -> None:
    async def pours(line: Line, heard: Heard) -> None:
        line.begin_stream()
        for number in range(200):
            line.event(f"{number} " + "x" * 10_000)
            await line.writer.drain()
        line.send(b"0\r\n\r\n")

    server = await peer(trusting, authority, pours)
    client = await granted(trusting, "localhost", server.port, Way(tls=True))
    reply = await client.reply()
    events = reply.body.split(b"\n\n")
    assert [event.split()[1] for event in events[:-1]] == [b"%d" % number for number in range(200)]
    big = {"pad": "y" * 3_000_000, "model": "small"}
    other = await trusting.client()
    other.ask(big)
    arrived = await trusting.hub.hears(Arrived)
    trusting.hub.say(Grant(arrived.request, "peer-p", "localhost", server.port, Way(tls=True)))
    assert (await other.reply()).status == 200
    assert server.heard[-1].json == big


async def test_a_caller_who_leaves_ends_the_connection_to_a_peer(trusting: RunningRelay, authority: Path) -> None:
    async def holds(line: Line, heard: Heard) -> None:
        line.begin_stream()
        line.event("one")
        await line.closed()
        raise ConnectionError

    server = await peer(trusting, authority, holds)
    client = await granted(trusting, "localhost", server.port, Way(tls=True))
    assert (await client.head()).status == 200
    client.hang_up()
    await server.ended.wait()
    assert (await trusting.hub.hears(Done)).status == 499


async def test_a_websocket_passes_through_tls(trusting: RunningRelay, authority: Path) -> None:
    server = await peer(trusting, authority, mirror)
    trusting.hub.say(Open("peer-p", "small", "localhost", server.port, None, Way(tls=True, prefix="/x")))
    await trusting.settled()
    client = await trusting.client()
    client.ask(path="/upstream/small/ws", more=UPGRADE)
    assert (await client.head()).status == 101
    assert await client.reader.readexactly(6) == b"hello "
    client.send(b"abc")
    assert await client.reader.readexactly(3) == b"cba"
    assert server.heard[0].target == "/x/ws"


@pytest.mark.parametrize(
    ("host", "trusts", "why"), [("127.0.0.1", True, "IP address mismatch"), ("localhost", False, "certificate")]
)
async def test_a_peer_without_a_good_certificate_gets_nothing(
    tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch, host: str, trusts: bool, why: str
) -> None:
    if trusts:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    async with RunningRelay.open(tmp_path, Limits(linger_s=0.1)) as relay:
        server = await peer(relay, authority)
        client = await granted(relay, host, server.port, Way(tls=True, api_key="theirs"))
        done = await relay.hub.hears(Done)
        assert done.gave_back and why in done.error
        assert not server.heard
        relay.hub.say(Refuse(done.request, 502, "peer_unreachable", done.error))
        assert (await client.reply()).code == "peer_unreachable"


async def test_another_key_or_path_is_another_peer(relay: RunningRelay) -> None:
    server = await relay.server()
    for prefix in ("/a", "/b"):
        client = await granted(relay, "127.0.0.1", server.port, Way(prefix=prefix))
        assert (await client.reply()).json["target"] == f"{prefix}/v1/chat/completions"
    assert server.connections == 2


async def test_a_host_that_can_be_no_name_is_told_of(relay: RunningRelay) -> None:
    client = await granted(relay, "a..b", 80, Way())
    done = await relay.hub.hears(Done, gave_back=True)
    assert "cannot be reached" in done.error
    relay.hub.say(Refuse(done.request, 502, "peer_unreachable", done.error))
    assert (await client.reply()).code == "peer_unreachable"
