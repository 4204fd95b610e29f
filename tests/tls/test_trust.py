"""By what a hub is known to those who talk to it, before they say anything."""

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.tls.papers import context_for, identity, issued

from ostler.client.errors import HubUnreachable
from ostler.client.http import Hub
from ostler.client.transport import Patience
from ostler.domain.errors import BadInput
from ostler.domain.joining import invitation, read_invitation
from ostler.tls import Identity, Trust, read_pin

SECRET = "s3cret-of-a-newcomer"
ONCE = Patience(tries=1)
HEALTHY = b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{"status":"ok"}'


class Listener:
    """Somebody who takes connections, and writes down what was said to it."""

    def __init__(self, shown: Identity | None) -> None:
        self.heard = b""
        self.connections = 0
        self.shown = shown
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._over = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over:
            try:
                plain, _ = self._socket.accept()
                self.connections += 1
                with plain, self._secured(plain) as connection:
                    connection.settimeout(5)
                    self.heard += connection.recv(65536)  # a request without a body is one piece
                    connection.sendall(HEALTHY)
            except OSError:
                continue

    def _secured(self, plain: socket.socket) -> socket.socket:
        return plain if self.shown is None else self.shown.context.wrap_socket(plain, server_side=True)

    def close(self) -> None:
        self._over = True
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(60)
        self._socket.close()


@contextmanager
def listening(shown: Identity | None) -> Iterator[Listener]:
    listener = Listener(shown)
    try:
        yield listener
    finally:
        listener.close()


def ask(port: int, trust: Trust, host: str = "127.0.0.1") -> dict[str, object]:
    with Hub(f"https://{host}:{port}", SECRET, patience=ONCE, trust=trust) as hub:
        return hub.health()


@pytest.mark.parametrize("how", ["file", "fingerprint", "fingerprint with colons", "found"])
def test_a_hub_is_known_by_its_authority(tmp_path: Path, how: str) -> None:
    pin = issued(tmp_path).fingerprint
    ca = tmp_path / "ca.pem"
    pairs = ":".join(pin[place : place + 2] for place in range(0, 64, 2)).upper()
    given = {"file": str(ca), "fingerprint": f"sha256:{pin}", "fingerprint with colons": f"sha256:{pairs}"}
    trust = Trust(given.get(how, ""), ca if how == "found" else None)
    with listening(Identity(tmp_path / "hub.pem")) as hub:
        assert ask(hub.port, trust) == {"status": "ok"}
        assert f"Bearer {SECRET}".encode() in hub.heard


@pytest.mark.parametrize("how", ["file", "fingerprint", "system"])
def test_somebody_else_is_told_nothing(tmp_path: Path, how: str) -> None:
    pin = issued(tmp_path / "ours").fingerprint
    given = {"file": str(tmp_path / "ours" / "ca.pem"), "fingerprint": f"sha256:{pin}", "system": ""}[how]
    with listening(identity(tmp_path / "theirs")) as other:
        with pytest.raises(HubUnreachable, match="is not trusted"):
            ask(other.port, Trust(given))
        assert other.connections >= 1 and other.heard == b""


def test_a_certificate_for_another_name_is_refused_in_words_that_help(tmp_path: Path) -> None:
    pin = issued(tmp_path, ("hub.example", "10.1.2.3")).fingerprint
    with listening(Identity(tmp_path / "hub.pem")) as hub:
        with pytest.raises(HubUnreachable, match="--url"):
            ask(hub.port, Trust(f"sha256:{pin}"))
        assert hub.heard == b""


def test_a_certificate_that_has_expired_is_refused_though_its_authority_is_known(tmp_path: Path) -> None:
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=400)
    issued(tmp_path, at=long_ago)
    with listening(Identity(tmp_path / "hub.pem")) as hub:
        with pytest.raises(HubUnreachable, match="not valid now"):
            ask(hub.port, Trust(str(tmp_path / "ca.pem")))
        assert hub.heard == b""


def test_a_leaf_that_is_shown_with_the_authority_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Who knows the fingerprint alone could be shown the right certificate above the wrong one."""
    ours = issued(tmp_path / "ours")
    issued(tmp_path / "theirs")
    forged = tmp_path / "forged.pem"
    theirs = (tmp_path / "theirs" / "hub.pem").read_text()
    key_and_leaf = theirs[: theirs.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----\n")]
    forged.write_text(key_and_leaf + (tmp_path / "ours" / "ca.pem").read_text())
    with listening(Identity(forged)) as other:
        with pytest.raises(HubUnreachable, match="is not trusted"):
            ask(other.port, Trust(f"sha256:{ours.fingerprint}"))
        assert other.heard == b""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_an_old_protocol_is_not_spoken(tmp_path: Path) -> None:
    shown = identity(tmp_path)
    with listening(shown) as hub:
        old = context_for(tmp_path)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with socket.create_connection(("127.0.0.1", hub.port)) as plain, pytest.raises(OSError, match=r"SSL|reset"):
            old.wrap_socket(plain, server_hostname="127.0.0.1")
    assert Trust(str(tmp_path / "ca.pem")).context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_who_speaks_no_tls_is_named_as_such(tmp_path: Path) -> None:
    issued(tmp_path)
    with listening(None) as plain, pytest.raises(HubUnreachable, match="speaks no TLS"):
        ask(plain.port, Trust(str(tmp_path / "ca.pem")))


def test_who_is_called_without_tls_and_breaks_off_may_speak_it(tmp_path: Path) -> None:
    with listening(identity(tmp_path)) as hub, pytest.raises(HubUnreachable, match=r"is it https://\?"):
        Hub(f"http://127.0.0.1:{hub.port}", SECRET, patience=ONCE).health()


def test_a_new_certificate_is_shown_to_who_comes_next_and_breaks_nothing(tmp_path: Path) -> None:
    shown = identity(tmp_path)
    client = context_for(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def connect() -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
            near = socket.create_connection(server.getsockname())
            far, _ = server.accept()
            accepted: list[ssl.SSLSocket] = []
            accepting = threading.Thread(
                target=lambda: accepted.append(shown.context.wrap_socket(far, server_side=True))
            )
            accepting.start()
            secured = client.wrap_socket(near, server_hostname="127.0.0.1")
            accepting.join(60)
            return secured, accepted[0]

        before, other_end = connect()
        first = before.getpeercert(binary_form=True)
        assert not shown.look(), "nothing was replaced"
        issued(tmp_path)
        assert shown.look()
        after, _ = connect()
        assert after.getpeercert(binary_form=True) != first
        before.sendall(b"still here")
        assert other_end.recv(100) == b"still here"
        (tmp_path / "hub.pem").write_text("half a file")
        assert not shown.look(), "what cannot be read is not shown"
        connect()


@pytest.mark.parametrize("given", ["sha256:", "sha256:abc", "sha256:" + "g" * 64, "sha256:" + "a" * 65])
def test_what_is_no_fingerprint_is_refused(given: str) -> None:
    with pytest.raises(BadInput, match="64 hexadecimal digits"):
        read_pin(given)


def test_a_file_that_is_not_there_or_holds_no_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        Trust(str(tmp_path / "nothing")).context  # noqa: B018
    (tmp_path / "text").write_text("hello")
    with pytest.raises(BadInput, match="holds no certificate"):
        Trust(str(tmp_path / "text")).context  # noqa: B018


def test_an_invitation_says_who_invites() -> None:
    assert read_invitation(invitation("ab" * 32, "a.b-c")) == ("ab" * 32, "a.b-c")
    assert invitation("", SECRET) == SECRET
    assert read_invitation(SECRET) == ("", SECRET)
    for cut in ("ostler-join.", "ostler-join.abc.def", f"ostler-join.{'ab' * 32}", f"ostler-join.{'ab' * 32}."):
        with pytest.raises(BadInput, match="was cut"):
            read_invitation(cut)
