"""What the hub has configured, made quick to ask: models by any of their names, callers by their secrets."""

import time
from typing import TYPE_CHECKING, Any

from ostler.domain.finite import encode
from ostler.domain.origins import Origins, normalize
from ostler.gateway.control import KeySetup, ModelSetup, Setup

if TYPE_CHECKING:
    from ostler.gateway.relay.instances import Instance

WORKER = "worker"
ANY_ORIGIN = "*"


class Key:
    __slots__ = ("digest", "in_flight", "is_worker", "limit", "role", "user")

    def __init__(self, setup: KeySetup) -> None:
        self.digest = bytes.fromhex(setup.digest)
        self.in_flight = 0
        self.configure(setup)

    def configure(self, setup: KeySetup) -> None:
        self.user = setup.user
        self.role = setup.role
        self.is_worker = setup.role == WORKER
        self.limit = setup.limits.in_flight


class Model:
    __slots__ = ("created", "name", "open", "rewrites", "setup", "waiting")

    def __init__(self, name: str, setup: ModelSetup) -> None:
        self.name = name
        self.created = int(time.time())
        """When the relay learnt of the model, in seconds since 1970. OpenAI's clients require the field."""
        self.open: list[Instance] = []
        """The instances whose gate stands open."""
        self.waiting = 0
        """Requests that the hub has been asked about. While there are any, nobody passes them through an open gate."""
        self.configure(setup)

    def configure(self, setup: ModelSetup) -> None:
        self.setup = setup
        self.rewrites = bool(setup.upstream_name or setup.filters.strip or setup.filters.set)

    def with_room(self) -> "Instance | None":
        """The open instance with the fewest requests, if it may have one more."""
        if not self.open or self.waiting:
            return None
        best = self.open[0] if len(self.open) == 1 else min(self.open, key=_load)
        return best if best.limit is None or best.in_flight < best.limit else None

    def document(self) -> dict[str, Any]:
        status = {"value": "loaded" if self.open else "unloaded"}
        listed = {"object": "model", "created": self.created, "owned_by": "ostler", **self.setup.document}
        return {**listed, "id": self.name, "status": status}


def _load(instance: "Instance") -> int:
    """Full ones last."""
    return instance.in_flight if instance.limit is None or instance.in_flight < instance.limit else 1 << 30


class Catalog:
    def __init__(self) -> None:
        self.max_body_bytes = 0
        self.version = 0
        """Another one after each change of the configuration."""
        self.models: dict[str, Model] = {}
        self.names: dict[str, Model] = {}
        """By name and by alias."""
        self._keys: dict[bytes, Key] = {}
        self._origins = Origins()
        self._cors = frozenset[str]()
        self._page = b""

    def configure(self, setup: Setup) -> set[Key]:
        """Models and keys that stay are the same objects: what is under way counts on. The keys that are there no
        more."""
        self.version += 1
        self.max_body_bytes = setup.max_body_bytes
        self._origins = Origins(setup.names)
        self._cors = frozenset(one if one == ANY_ORIGIN else normalize(one) for one in setup.cors_origins)
        known, self.models = self.models, {}
        for name, of_model in setup.models.items():
            model = self.models[name] = known.get(name) or Model(name, of_model)
            model.configure(of_model)
        self.names = {
            alias: self.models[name] for name, of in setup.models.items() for alias in of.aliases
        } | self.models
        keys, self._keys = self._keys, {}
        for of_key in setup.keys:
            key = keys.get(bytes.fromhex(of_key.digest)) or Key(of_key)
            key.configure(of_key)
            self._keys[key.digest] = key
        self.changed()
        return {key for digest, key in keys.items() if digest not in self._keys}

    def workers(self) -> set[str]:
        """Those that have a key."""
        return {key.user for key in self._keys.values() if key.is_worker}

    def changed(self) -> None:
        """A gate was opened or closed."""
        self._page = b""

    def key_of(self, bearer: bytes, api_key: bytes) -> Key | None:
        """By the digests of what was shown; nothing shown is no digest."""
        return (bearer and self._keys.get(bearer)) or (api_key and self._keys.get(api_key)) or None

    def is_called_rightly(self, host: str, origin: str | None, local: str) -> bool:
        """By a name of ours, and by no page of somebody else's."""
        if not self._origins.knows_host(host, local):
            return False
        return origin is None or any(self._origins.knows_origin(origin, scheme, host) for scheme in ("https", "http"))

    def welcomes(self, origin: str) -> bool:
        """Pages of this origin may call the gateway, though it is another origin than the gateway's."""
        return ANY_ORIGIN in self._cors or (bool(self._cors) and normalize(origin) in self._cors)

    def page(self) -> bytes:
        """`GET /v1/models`."""
        if not self._page:
            listed = [model.document() for model in self.models.values() if not model.setup.unlisted]
            self._page = encode({"object": "list", "data": listed})
        return self._page
