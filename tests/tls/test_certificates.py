"""What a hub makes for itself: an authority, and certificates that it signs."""

import datetime
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from tests.tls.papers import LOCAL, issued

from ostler.domain.errors import BadInput
from ostler.hub import certificates, tls
from ostler.hub.settings import Settings
from ostler.tls import Identity, Wanted, fingerprint

NOW = datetime.datetime.now(datetime.UTC)


def own(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / certificates.OWN).read_bytes())


def names(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(one.value) for one in found}


def test_keys_are_their_owners_alone_and_the_authoritys_certificate_is_everybodys(tmp_path: Path) -> None:
    issued(tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "hub.pem": 0o600}
    assert b"PRIVATE" not in (tmp_path / "ca.pem").read_bytes()


def test_the_fingerprint_is_the_one_that_openssl_prints(tmp_path: Path) -> None:
    found = issued(tmp_path).fingerprint
    der = ssl.PEM_cert_to_DER_cert((tmp_path / "ca.pem").read_text())
    assert found == fingerprint(der)
    asked = ["openssl", "x509", "-in", str(tmp_path / "ca.pem"), "-noout", "-fingerprint", "-sha256"]
    printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert printed.strip().rpartition("=")[2].replace(":", "").lower() == found


def test_a_certificate_stays_until_a_month_before_its_end(tmp_path: Path) -> None:
    renewal = issued(tmp_path)
    first = own(tmp_path)
    renewal(NOW + datetime.timedelta(days=59))
    assert own(tmp_path) == first
    renewal(NOW + datetime.timedelta(days=61))
    second = own(tmp_path)
    assert second.serial_number != first.serial_number
    assert second.not_valid_after_utc > first.not_valid_after_utc
    assert second.issuer == first.issuer, "whoever knows the authority need not be told"


def test_another_name_or_another_authority_asks_for_another_certificate(tmp_path: Path) -> None:
    issued(tmp_path)
    certificates.Renewal(tmp_path, tmp_path, [*LOCAL, "hub.example"])()
    named = own(tmp_path)
    assert names(named) == {*LOCAL, "hub.example"}
    (tmp_path / "ca.key").unlink()
    certificates.Renewal(tmp_path, tmp_path, [*LOCAL, "hub.example"])()
    assert own(tmp_path).issuer != named.issuer


def test_what_is_damaged_is_made_anew_and_a_damaged_authority_is_not_replaced(tmp_path: Path) -> None:
    issued(tmp_path)
    (tmp_path / certificates.OWN).write_text("-----BEGIN CERTIFICATE-----\nnonsense")
    certificates.Renewal(tmp_path, tmp_path, list(LOCAL))()
    Identity(tmp_path / certificates.OWN)
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(BadInput, match="no authority's key"):
        certificates.Renewal(tmp_path, tmp_path, list(LOCAL))


def test_hubs_on_one_store_have_one_authority_and_a_key_each(tmp_path: Path) -> None:
    store, one, two = tmp_path / "store", tmp_path / "one", tmp_path / "two"
    for folder in (store, one, two):
        folder.mkdir()
    made = [certificates.Renewal(store, folder, list(LOCAL)) for folder in (one, two)]
    for renewal in made:
        renewal()
    assert made[0].fingerprint == made[1].fingerprint
    assert (one / "ca.pem").read_bytes() == (two / "ca.pem").read_bytes()
    assert own(one).public_key() != own(two).public_key()
    assert not (one / "ca.key").exists()


def test_it_is_what_a_strict_reader_wants(tmp_path: Path) -> None:
    """As newer Pythons check by default, and others on request."""
    issued(tmp_path)
    asked = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", str(tmp_path / "ca.pem")]
    done = subprocess.run([*asked, str(tmp_path / certificates.OWN)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_given_chain_is_known_by_its_end_unless_the_system_knows_it(tmp_path: Path) -> None:
    renewal = issued(tmp_path)
    whole = tmp_path / certificates.OWN
    chosen = tls.shown(Wanted(certificate=whole, key=whole), tmp_path, tmp_path, [])
    assert chosen is not None and chosen.fingerprint == renewal.fingerprint
    begin = whole.read_text().index("-----BEGIN CERTIFICATE")
    leaf = whole.read_text()[begin:].partition("-----END CERTIFICATE-----\n")
    alone = tmp_path / "leaf.pem"
    alone.write_text("".join(leaf[:2]))
    chosen = tls.shown(Wanted(certificate=alone, key=whole), tmp_path, tmp_path, [])
    assert chosen is not None and chosen.fingerprint == ""


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    issued(tmp_path)
    locked = tmp_path / "locked.key"
    unlocked = str(tmp_path / certificates.OWN)
    asked = ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", unlocked, "-out", str(locked)]
    subprocess.run(asked, check=True, capture_output=True)
    program = (
        "import sys; from pathlib import Path; from ostler.tls import Identity; Identity(*map(Path, sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, unlocked, str(locked)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert "the key is locked by a password" in done.stderr


def test_the_first_that_says_anything_of_tls_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(tls_cert="/in/file.pem", tls_key="/in/file.key")
    monkeypatch.delenv("OSTLER_TLS", raising=False)
    assert tls.chosen(Wanted(), settings).certificate == Path("/in/file.pem")
    monkeypatch.setenv("OSTLER_TLS", "auto")
    assert tls.chosen(Wanted(), settings) == Wanted("auto")
    assert tls.chosen(Wanted(certificate=Path("c"), key=Path("k")), settings).certificate == Path("c")
    for bad in (Wanted("no"), Wanted(certificate=Path("c")), Wanted("auto", Path("c"), Path("k"))):
        with pytest.raises(BadInput):
            tls.chosen(bad, settings)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "hub.example", "128.0.0.1", "::ffff:10.0.0.1"])
def test_what_other_machines_reach_needs_tls(host: str) -> None:
    with pytest.raises(BadInput, match="--tls auto"):
        tls.refuse_open_without(host, Wanted())
    tls.refuse_open_without(host, Wanted("auto"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_what_this_machine_alone_reaches_needs_none(host: str) -> None:
    tls.refuse_open_without(host, Wanted())
