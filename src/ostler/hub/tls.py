"""How a hub is spoken to: without TLS by its own machine alone, else with certificates of its own authority, or with
those that its operator gave it."""

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from ostler.domain.errors import BadInput
from ostler.hub.settings import Settings
from ostler.tls import Identity, Wanted

LOOK_S = 60.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")

_log = logging.getLogger("ostler.hub")


def chosen(flags: Wanted, settings: Settings) -> Wanted:
    """As given, from the environment, or from the settings file: whichever says anything of it."""
    names = ("OSTLER_TLS", "OSTLER_TLS_CERT", "OSTLER_TLS_KEY")
    mode, certificate, key = (os.environ.get(name, "") for name in names)
    in_environment = Wanted(mode, _path(certificate), _path(key))
    in_file = Wanted(settings.tls, _path(settings.tls_cert), _path(settings.tls_key))
    for source in (flags, in_environment, in_file):
        if source.mode or source.certificate or source.key:
            return source.checked()
    return Wanted()


def _path(text: str) -> Path | None:
    return Path(text).expanduser().absolute() if text else None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_open_without(host: str, chosen: Wanted) -> None:
    """Tokens would be readable on the way: nothing but this machine is let in without TLS."""
    if not chosen and not is_loopback(host):
        raise BadInput(
            f"--host {host or '(all addresses)'} opens the hub to other machines, and that needs TLS: add `--tls auto` "
            "(it makes its own certificates), or --tls-cert FILE --tls-key FILE; or listen on 127.0.0.1",
            [("host", "needs TLS")],
        )


@dataclass
class Shown:
    """A hub's identity, and by what others know it."""

    identity: Identity
    fingerprint: str = ""
    """Of the certificate that stands for all: the authority's. Empty where that is one that systems trust anyway."""
    renew: Callable[[], None] | None = None
    names: Sequence[str] = ()
    """For which its certificate stands: whoever has checked it calls the hub by one of these."""

    async def keep(self) -> None:
        """For as long as the hub runs: a certificate that is made or given anew is shown from then on."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.renew is not None:
                await asyncio.to_thread(self.renew)
            if self.identity.look():
                _log.info("new connections are shown the new certificate in %s", self.identity.certificate)


def shown(chosen: Wanted, store: Path, state: Path, names: Iterable[str]) -> Shown | None:
    if not chosen:
        return None
    from ostler.hub import certificates  # a tenth of a second, for those that need it

    if chosen.certificate is not None:
        identity = Identity(chosen.certificate, chosen.key)
        names = certificates.names_in(chosen.certificate)
        return Shown(identity, certificates.self_signed_above(chosen.certificate), names=names)
    renewal = certificates.Renewal(store, state, list(names))
    renewal()
    return Shown(Identity(state / certificates.OWN), renewal.fingerprint, renewal, list(names))


def names_of(given: Iterable[str]) -> list[str]:
    """By which this machine may be spoken to: here, by its name, by its addresses, and as its operator says: names,
    addresses or URLs."""
    said = [urlsplit(one).hostname or "" if "://" in one else one.strip("[]") for one in given]
    said.append(socket.gethostname())
    addresses = [
        one.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for one in interface
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]
    found = dict.fromkeys((*LOOPBACK, *said, *sorted(addresses)))
    return [name for name in found if name not in ("", "0.0.0.0", "::")]


def what_is_open(url: str, gateway_port: int, chosen: Shown) -> list[str]:
    """For whoever starts a hub that other machines reach."""
    address = urlsplit(url)
    everywhere = address.hostname in ("0.0.0.0", "::")
    where = "every address of this machine" if everywhere else address.hostname
    lines = [
        f"open to other machines: {where}, port {address.port} (the hub) and, where models are configured, port "
        f"{gateway_port} (the gateway); both with TLS, and to nobody without a token"
    ]
    if chosen.fingerprint:
        lines.append(f"others know it by the fingerprint sha256:{chosen.fingerprint}")
    return lines
