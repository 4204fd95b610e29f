"""Other OpenAI-compatible servers: their models' requests go there, and no room of the fleet's is used."""

from urllib.parse import urlsplit

from ostler.gateway import control
from ostler.gateway.control import PEER
from ostler.gateway.settings import GatewaySettings, Peer


class Peers:
    def __init__(self, settings: GatewaySettings) -> None:
        self._of = {name: found.peer for name, found in settings.peer_models().items()}

    def answer(self, arrived: control.Arrived) -> control.Grant | None:
        """What becomes of a request; None: it is for no peer's model."""
        peer = self._of.get(arrived.model)
        return None if peer is None else _grant(arrived.request, peer)

    def gave_back(self, done: control.Done) -> control.Refuse | None:
        """It was sent there, and nothing came of it; None: it was sent to no peer. By now it may be a peer no more."""
        if not done.instance.startswith(PEER):
            return None
        name = done.instance.removeprefix(PEER)
        message = f"the peer {name!r} did not answer: {done.error}; try again when it is back"
        return control.Refuse(done.request, 502, "peer_unreachable", message, 5.0)


def _grant(request: int, peer: Peer) -> control.Grant:
    url = urlsplit(peer.url)
    tls = url.scheme == "https"
    way = control.Way(tls=tls, prefix=url.path, api_key=peer.api_key)
    return control.Grant(request, PEER + peer.name, url.hostname or "", url.port or (443 if tls else 80), way)
