"""What `[models]` and `[gateway]` say, in the forms that the hub, the scheduler and the relay want it in."""

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec

from ostler.domain.job import STOP_GRACE_S, STOP_WITHIN, HealthCheck, JobSpec
from ostler.domain.quota import GATEWAY_USER
from ostler.gateway.control import Filters, KeySetup, LoadingUpdates, ModelSetup, Setup
from ostler.gateway.core.models import Config, Recipe
from ostler.gateway.document import document
from ostler.gateway.keys import NO_CHECK

MODEL = "ostler.model"
DIGEST = "ostler.digest"
PORT = "ostler.port"
STOP = "ostler.stop"
"""Keys in the metadata of a model's job: its name, the digest of its recipe, the port it must have, and the command
that stops it."""
MIB = 1024 * 1024
GIB_IN_MIB = 1024


class Peak(NamedTuple):
    """The most that was seen, and what the next process is given for it; 0: nothing was."""

    seen_mib: int = 0
    given_mib: int = 0


class Seen(NamedTuple):
    """What processes of a model were seen to take of each device, and of their machine."""

    vram: Peak = Peak()
    memory: Peak = Peak()


NOTHING_SEEN = Seen()


class Needs(NamedTuple):
    """What a process is given: whole GPUs or none, and memory of each GPU, or of one, and of the machine."""

    gpus: int
    vram_gb: float
    memory_gb: float


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    name: str
    command: list[str]
    stop_command: list[str] = []
    port: int = 0
    """0: one that its worker gives it."""
    env: dict[str, str] = {}
    aliases: list[str] = []
    title: str = ""
    description: str = ""
    metadata: dict[str, Any] = {}
    unlisted: bool = False
    ttl_s: float = 0.0
    pinned: bool = False
    vram_gb: float | None = 0.0
    """None: as much as it was seen to take, and a whole GPU until then."""
    memory_gb: float | None = 0.0
    gpus: int = 0
    cpus: float = 0.0
    labels: list[str] = []
    check: str = "/health"
    load_timeout_s: float = 120.0
    stop_timeout_s: float = STOP_GRACE_S
    concurrency: int | None = None
    queue_limit: int | None = None
    request_limit: int | None = None
    priority: int = 0
    filters: Filters = Filters()
    upstream_name: str = ""
    on_client_abort: Literal["cancel", "drain"] = "cancel"
    max_instances: int = 1
    load_s: float | None = None
    loading_updates: LoadingUpdates = True

    def spec(self, job_id: str, seen: Seen = NOTHING_SEEN) -> JobSpec:
        """The job that is one process of this model, of which so much is known."""
        metadata: dict[str, Any] = {MODEL: self.name}
        needs = self.needs(seen)
        if self.stop_timeout_s != STOP_GRACE_S:
            metadata[STOP_WITHIN] = self.stop_timeout_s
        if self.port:
            metadata[PORT] = self.port
        if self.stop_command:
            metadata[STOP] = self.stop_command
        return JobSpec(
            id=job_id,
            name=self.name,
            type="model",
            user_id=GATEWAY_USER,
            gpu_count=needs.gpus,
            min_vram_gb=needs.vram_gb * max(1, needs.gpus),
            min_memory_gb=needs.memory_gb,
            min_cpu_cores=self.cpus,
            labels=self.labels,
            command=self.command,
            env=self.env,
            health_check=None if self.check == NO_CHECK else HealthCheck(readiness=self.check),
            metadata=metadata,
            max_attempts=0,
            max_retries=0,
        )

    def needs(self, seen: Seen) -> Needs:
        gpus = self.gpus or int(self.vram_gb is None and not seen.vram.seen_mib)
        return Needs(gpus, _needed(self.vram_gb, seen.vram), _needed(self.memory_gb, seen.memory))

    @cached_property
    def digest(self) -> str:
        """Another one where a process that runs is not what would be started now."""
        return hashlib.sha256(msgspec.json.encode(self.spec(""), order="deterministic")).hexdigest()

    def recipe(self) -> Recipe:
        return Recipe(
            name=self.name,
            digest=self.digest,
            aliases=tuple(self.aliases),
            ttl_s=self.ttl_s,
            pinned=self.pinned,
            concurrency=self.concurrency,
            queue_limit=self.queue_limit,
            request_limit=self.request_limit,
            priority=self.priority,
            max_instances=self.max_instances,
            load_s=self.load_s,
        )

    def setup(self) -> ModelSetup:
        return ModelSetup(
            aliases=self.aliases,
            upstream_name=self.upstream_name,
            filters=self.filters,
            unlisted=self.unlisted,
            on_client_abort=self.on_client_abort,
            loading_updates=self.loading_updates,
            document=document(self.title, self.description, self.metadata),
        )


def _needed(declared_gb: float | None, peak: Peak) -> float:
    """What is declared counts until more than that was seen."""
    if declared_gb is None or 0 < declared_gb < peak.seen_mib / GIB_IN_MIB:
        return peak.given_mib / GIB_IN_MIB
    return declared_gb


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Another OpenAI-compatible server. The path of a request is put after its URL, which ends before `/v1`."""

    name: str
    url: str
    models: list[str]
    api_key: str = ""
    filters: Filters = Filters()


class PeerModel(NamedTuple):
    peer: Peer
    model: str
    """What the peer calls it."""
    alias: str
    """Its name without the peer's, where that is nobody else's; else nothing."""

    def setup(self) -> ModelSetup:
        return ModelSetup(
            aliases=[self.alias] if self.alias else [],
            upstream_name=self.model,
            filters=self.peer.filters,
            document=document(f"{self.peer.name}: {self.model}", "", {"peer": self.peer.name}),
        )


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    models: dict[str, ModelSettings] = {}
    peers: dict[str, Peer] = {}
    scheduler: Literal["serial", "fifo"] = "serial"
    config: Config = Config()
    """What the scheduler takes."""
    keys: list[KeySetup] = []
    url: str = ""
    """What workers on other machines call it; none: its port on the machine that they know as the hub's."""
    max_body_bytes: int = 256 * MIB
    cors_origins: list[str] = []
    """Whose pages may call the gateway from browsers."""
    notes: list[tuple[str, str]] = []
    """What is allowed, and hardly meant."""

    @property
    def wanted(self) -> bool:
        """There is something to be served."""
        return bool(self.models or self.peers)

    def peer_models(self) -> dict[str, PeerModel]:
        """`peer/model` for each model of a peer. The fleet's own names go before."""
        own = {name for model in self.models.values() for name in (model.name, *model.aliases)}
        every = [(peer, model) for peer in self.peers.values() for model in peer.models]
        offers = [model for _, model in every]
        named = {
            f"{peer.name}/{model}": PeerModel(
                peer, model, model if offers.count(model) == 1 and model not in own else ""
            )
            for peer, model in every
        }
        return {name: found for name, found in named.items() if name not in own}

    def setup(self, tokens: Iterable[KeySetup] = (), version: str = "") -> Setup:
        """What the relay takes; callers may show one of these tokens, or one of `api_keys`."""
        models = {name: model.setup() for name, model in self.models.items()}
        models |= {name: found.setup() for name, found in self.peer_models().items()}
        keys = [*self.keys, *tokens]
        return Setup(models, keys, self.max_body_bytes, version, cors_origins=self.cors_origins)
