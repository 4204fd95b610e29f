"""Outputs on their way to the hub: from where an earlier upload was cut, until the hub has them whole."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ostler.worker.api import SMALL_BYTES, Declined, HubApi, Stored, Unreachable

DAMAGED = 422
STUCK = 3


class Traffic:
    """Whether anything still moves towards the hub. A worker that is about to leave waits for as long as it does."""

    def __init__(self) -> None:
        self._bytes = self._seen = self._packing = 0

    def moved(self, count: int) -> None:
        self._bytes += count

    @contextlib.contextmanager
    def packing(self) -> Iterator[None]:
        self._packing += 1
        try:
            yield
        finally:
            self._packing -= 1

    def has_moved(self) -> bool:
        """Since it was last asked."""
        before, self._seen = self._seen, self._bytes
        return self._packing > 0 or self._bytes != before


class Upload(msgspec.Struct, kw_only=True):
    path: Path
    sha256: str
    size: int
    have: int = 0
    """What the hub is known to have of it."""
    tried: bool = False
    whole: bool = False


async def bring(api: HubApi, upload: Upload, traffic: Traffic) -> None:
    """Until it is there. Unreachable if the hub is not, or gets no further."""
    upload.whole = await api.put_past_hub(f"/v1/model/{upload.sha256}", upload.path, traffic.moved)
    ask = upload.tried or upload.size > SMALL_BYTES
    upload.tried = True
    stuck = 0
    while not upload.whole:
        if ask:
            _take(upload, await api.model_stored(upload.sha256))
            ask = False
            continue
        before = upload.have
        try:
            _take(upload, await api.put_model(upload.sha256, upload.path, before, traffic.moved))
        except Unreachable:
            stored = await api.model_stored(upload.sha256)
            _take(upload, stored)
            if not stored.whole and stored.size <= before:
                raise
        except Declined as refusal:
            if refusal.status != DAMAGED or not before:
                raise
            upload.have = 0  # what the hub had was damaged, and it has dropped that
        stuck = stuck + 1 if upload.have <= before else 0
        if stuck == STUCK:
            raise Unreachable(f"the hub has {upload.have} bytes of the upload, and takes no more")


def _take(upload: Upload, stored: Stored) -> None:
    """More than there is, and not whole, is nothing to go on from. All of it, and not whole: the hub has yet to look at
    it, or to bring it to its store."""
    upload.have = stored.size if stored.whole or stored.size <= upload.size else 0
    upload.whole = stored.whole
