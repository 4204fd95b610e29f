"""Where the hub may go on behalf of somebody else: to the public network, and to what its operator allows.

A name is looked up once, and the connection goes to the address that was judged: whoever owns the name cannot give
another one in between. However the host is written, no socket is made for an address that may not be gone to. Nothing
follows a redirect.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from ostler.domain.notices import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
LOOKUPS = 16
_TRANSLATED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_COMPATIBLE = ipaddress.ip_network("::/96")


class Forbidden(OSError):
    """It leads to where jobs must not send the hub: the operator may allow it."""


def is_allowed(address: Address, allow: Sequence[Network]) -> bool:
    inner = _inside(address)
    if any(one in network for one in (address, inner) for network in allow if network.version == one.version):
        return True
    return all(_is_public(one) for one in (address, inner))


def _is_public(address: Address) -> bool:
    site_local = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    return address.is_global and not address.is_multicast and not site_local


def _inside(address: Address) -> Address:
    """The IPv4 address that one of IPv6 stands for, where it stands for one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _COMPATIBLE or any(address in network for network in _TRANSLATED):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None) or address


def judge_literal(host: str, allow: Sequence[Network]) -> None:
    """Of a host that is no name. Forbidden: not there."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return
    if not is_allowed(address, allow):
        raise Forbidden(_told(host))


def _told(host: str) -> str:
    return f"{host} is not on the public network, and the hub's [notify] does not allow it"


def judged_socket(allow: Sequence[Network]) -> Callable[[tuple[Any, ...]], socket.socket]:
    """The last word: of the address that is about to be connected to. What is none, as it stands, is not looked up."""

    def make(found: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, where = found
        host = str(where[0])
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            raise Forbidden(_told(host)) from None
        if not is_allowed(address, allow):
            raise Forbidden(_told(host))
        return socket.socket(family, kind, protocol)

    return make


class Judged(AbstractResolver):
    """Gives the client only addresses that it may go to."""

    def __init__(self, allow: Sequence[Network]) -> None:
        self._allow = allow
        # Not by the threads of the loop: a name server that never answers must not hold up what else waits for one.
        self._threads = ThreadPoolExecutor(LOOKUPS, "lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        stream, flags = socket.SOCK_STREAM, socket.AI_ADDRCONFIG
        look_up = partial(socket.getaddrinfo, host, port, family=family, type=stream, flags=flags)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        results: list[ResolveResult] = []
        for kind, _, protocol, _, where in found:
            address = ipaddress.ip_address(str(where[0]).partition("%")[0])
            if not is_allowed(address, self._allow):
                raise Forbidden(_told(host))
            number = socket.AI_NUMERICHOST
            results.append(
                {
                    "hostname": host,
                    "host": str(address),
                    "port": port,
                    "family": kind,
                    "proto": protocol,
                    "flags": number,
                }
            )
        return results

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
