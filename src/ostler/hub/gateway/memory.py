"""What outlives the hub: which models people pinned, how long their loads took and how much their processes took."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from ostler.core.events import Keep
from ostler.core.fleet import Fleet
from ostler.domain.records import AttemptRecord
from ostler.gateway.core.models import Config
from ostler.gateway.settings import NOTHING_SEEN, ModelSettings, Peak, Seen
from ostler.hub.gateway.instances import Instance
from ostler.hub.loop import Loop

_log = logging.getLogger("ostler.gateway")
SCOPE = "gateway"
MARGIN = 1.1
"""A process is given this much more than it was ever seen to take, if there is a device with so much."""


class Remembered(msgspec.Struct, frozen=True, omit_defaults=True):
    pinned: bool | None = None
    """None: as the configuration says."""
    load_s: float | None = None
    load_at: dict[str, float] = {}
    """By worker."""
    digest: str = ""
    """The recipe whose processes took so much."""
    seen: Seen = NOTHING_SEEN


NOTHING = Remembered()
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Remembered).decode


class Memory:
    """`kept` is what the ledger has."""

    def __init__(self, loop: Loop, kept: Mapping[str, bytes]) -> None:
        self._loop = loop
        self._models: dict[str, Remembered] = {}
        for model, value in kept.items():
            try:
                self._models[model] = _decode(value)
            except msgspec.DecodeError as error:
                _log.warning("what was learnt of the model %r is not understood, and learnt anew: %s", model, error)

    def of(self, model: str) -> Remembered:
        return self._models.get(model, NOTHING)

    def applied_to(self, config: Config) -> Config:
        """With what people said and loads have shown since it was written."""
        models = []
        for recipe in config.models:
            found = self.of(recipe.name)
            pinned = recipe.pinned if found.pinned is None else found.pinned
            load_s = recipe.load_s if found.load_s is None else found.load_s
            models.append(msgspec.structs.replace(recipe, pinned=pinned, load_s=load_s, load_at=found.load_at))
        return msgspec.structs.replace(config, models=tuple(models))

    def seen(self, recipe: ModelSettings) -> Seen:
        """What processes of just this recipe took."""
        found = self.of(recipe.name)
        return found.seen if found.digest == recipe.digest else NOTHING_SEEN

    def is_pinned(self, recipe: ModelSettings) -> bool:
        found = self.of(recipe.name).pinned
        return recipe.pinned if found is None else found

    def pin(self, model: str, pinned: bool | None) -> None:
        self._change(model, pinned=pinned)

    def loaded(self, model: str, load_s: float, places: dict[str, float]) -> None:
        self._change(model, load_s=load_s, load_at=dict(places))

    def took(self, fleet: Fleet, instance: Instance, record: AttemptRecord) -> None:
        """The most that a process was seen to take, as its worker measured it."""
        before = self.of(instance.model)
        known = before.seen if before.digest == instance.digest else NOTHING_SEEN
        devices = len(record.devices) or 1
        worker = fleet.workers.get(record.worker)
        sizes = [one.vram_mib for one in worker.offer.devices if one.index in record.devices] if worker else []
        vram = _peak(-(-record.peak_vram_mib // devices), min(sizes, default=0))
        memory = _peak(record.peak_memory_mib, worker.offer.memory_mib if worker else 0)
        seen = Seen(max(known.vram, vram), max(known.memory, memory))
        if seen != known:
            self._change(instance.model, digest=instance.digest, seen=seen)

    def _change(self, model: str, **fields: Any) -> None:
        changed = msgspec.structs.replace(self.of(model), **fields)
        if changed != self.of(model):
            self._models[model] = changed
            self._loop.post(Keep(scope=SCOPE, key=model, value=_encode(changed)))


def _peak(seen_mib: int, there_mib: int) -> Peak:
    """Never more than there was: what ran there fits there again, though it took more than was offered."""
    return Peak(seen_mib, min(int(seen_mib * MARGIN), there_mib) if there_mib else seen_mib)
