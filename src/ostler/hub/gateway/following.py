"""`ostler.toml` while the hub runs: what it says of models counts soon after it was written. A file that cannot be used
changes nothing, and is told of until it can."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from ostler.domain.errors import BadInput
from ostler.gateway.settings import GatewaySettings
from ostler.hub.documents import Document
from ostler.hub.gateway.gateway import Gateway

_log = logging.getLogger("ostler.gateway")
LOOK_S = 0.5
"""A file that is the same twice in a row has been written to its end."""

Stamp = tuple[int, int, int] | None


class ConfigFile:
    """`read` gives the settings in a file, or BadInput."""

    def __init__(self, path: Path, gateway: Gateway, read: Callable[[Path], GatewaySettings]) -> None:
        self._path = path
        self._gateway = gateway
        self._read = read
        self._known = self._stamp()
        self.error = ""
        """Why the file is not what counts."""

    def document(self) -> Document:
        notes = [{"where": where, "what": what} for where, what in self._gateway.settings.notes]
        return {"file": str(self._path), "error": self.error or None, "notes": notes}

    async def follow(self) -> None:
        """For as long as the hub runs."""
        before = self._known
        while True:
            await asyncio.sleep(LOOK_S)
            stamp = self._stamp()
            if stamp == before and stamp != self._known:
                self.look()
            before = stamp

    def look(self) -> None:
        """Read it again; nobody waits for the answer."""
        with contextlib.suppress(BadInput):
            self.reload()

    def reload(self) -> Document:
        """What has become of each model, or BadInput."""
        self._known = self._stamp()
        try:
            settings = self._read(self._path)
        except BadInput as error:
            self.error = str(error)
            _log.error("the configuration is not used, and what it was before goes on: %s", error)
            raise
        self.error = ""
        before, after = self._gateway.settings, settings
        if before != after:
            self._gateway.configure(settings)
        there = [name for name in after.models if name in before.models]
        found: Document = {
            "added": [name for name in after.models if name not in before.models],
            "changed": [name for name in there if before.models[name] != after.models[name]],
            "restarted": [name for name in there if before.models[name].digest != after.models[name].digest],
            "removed": [name for name in before.models if name not in after.models],
        }
        told = "; ".join(f"{what} {', '.join(names)}" for what, names in found.items() if names)
        _log.info("%s was read again: %s", self._path, told or "its models are the same")
        for note in self.document()["notes"]:
            _log.warning("%s: %s", note["where"], note["what"])
        return {**self.document(), **found}

    def _stamp(self) -> Stamp:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
