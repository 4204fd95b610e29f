"""Other OpenAI-compatible servers: their models' requests go there, and no room of the fleet's is used.

The relay speaks plain HTTP to a host and a port, and shows no key: peers that want more cannot be reached, which is
said when the hub starts and to whoever asks for one of their models.
"""

import logging
from urllib.parse import urlsplit

from ostler.gateway import control
from ostler.gateway.settings import GatewaySettings, Peer

_log = logging.getLogger("ostler.gateway")


class Peers:
    def __init__(self, settings: GatewaySettings) -> None:
        self._of = {name: found.peer for name, found in settings.peer_models().items()}
        for peer in settings.peers.values():
            if why := unreachable(peer):
                _log.error("the peer %s cannot be used: %s", peer.name, why)

    def answer(self, arrived: control.Arrived) -> control.Grant | control.Refuse | None:
        """What becomes of a request; None: it is for no peer's model."""
        peer = self._of.get(arrived.model)
        if peer is None:
            return None
        if why := unreachable(peer):
            return control.Refuse(arrived.request, 502, "peer_unreachable", f"the peer {peer.name!r}: {why}")
        if arrived.again:
            message = f"the peer {peer.name!r} did not answer; try again when it is back"
            return control.Refuse(arrived.request, 502, "peer_unreachable", message, 5.0)
        url = urlsplit(peer.url)
        return control.Grant(arrived.request, f"peer-{peer.name}", url.hostname or "", url.port or 80)


def unreachable(peer: Peer) -> str:
    url = urlsplit(peer.url)
    if url.scheme != "http":
        return "only http is spoken to peers; put a local proxy before it"
    if url.path.strip("/"):
        return f"its URL must end before any path, and has {url.path!r}"
    if peer.api_key:
        return "no key can be shown to a peer"
    return ""
