"""Artifacts from the hub to this machine: gone on with where a download was cut, verified, then under their name."""

import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from ostler.archive.unpack import BadArchive, Limits, unpack
from ostler.client.errors import BadInput, HubUnreachable, NotFound, OstlerError
from ostler.client.http import Document, Hub
from ostler.client.streams import Outage

Progress = Callable[[int, int], None]
"""Called with the bytes that are done, and those that there are."""
READ_BYTES = 1024 * 1024
LIMITS = Limits(entries=1_000_000, total_bytes=1024**4)
"""Of a plain archive its own size is the limit, of a compressed one what it announces."""


class Damaged(OstlerError):
    """The bytes are not those that were asked for: the hub's copy is looked at, or they are fetched again."""

    title = "damaged"


def find(hub: Hub, text: str) -> Document:
    """The artifact of this id or beginning of one, or that of the job of this id or name."""
    try:
        return hub.artifact(text)
    except NotFound as error:
        no_artifact = error
    try:
        job = hub.job(text)
    except NotFound:
        if "several" in str(no_artifact):
            raise no_artifact from None
        raise NotFound(f"there is no artifact and no job {text!r}; see: ostler artifacts list") from None
    if job.get("counts"):
        raise BadInput(f"{text!r} has many tasks, each with an artifact of its own: name one, such as {job['id']}.0")
    if not job.get("artifact_id"):
        raise NotFound(f"the job {text!r} has no artifact: it is {job['state']}")
    return hub.artifact(job["artifact_id"])


def file_name(artifact: Document) -> str:
    """How the file is called where nobody says otherwise."""
    return f"{folder_name(artifact)}.tar{'.zst' if artifact['compressed'] else ''}"


def folder_name(artifact: Document) -> str:
    model, name = artifact["model"], artifact["jobs"][0]["name"] if artifact["jobs"] else ""
    about = "_".join(part for part in (model, artifact["mode"]) if part) if model else name or "artifact"
    safe = "".join(sign if sign.isascii() and (sign.isalnum() or sign in "._-") else "-" for sign in about[:80])
    return f"{safe.lstrip('.')}-{artifact['id'][:12]}"


def fetch(hub: Hub, artifact: Document, target: Path, progress: Progress | None = None) -> None:
    """The bytes as this file, which must not be there yet, unless it is this very artifact."""
    if target.exists():
        if target.is_file() and _hash(target)[0].hexdigest() == artifact["id"]:
            return
        raise BadInput(f"{target} is there already and is something else; choose another name with --to")
    os.replace(_download(hub, artifact, target, progress), target)


def extract(hub: Hub, artifact: Document, target: Path, progress: Progress | None = None) -> int:
    """Its files as this folder, which must not be there yet. How many bytes they have."""
    if target.exists():
        raise BadInput(f"{target} is there already; choose another folder with --to")
    archive = _download(hub, artifact, target, progress)
    part = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    try:
        size = unpack(archive, part, LIMITS, threading.Event())
        os.replace(part, target)
    except BadArchive as error:
        what = f"{artifact['id']} cannot be unpacked: {error}"
        raise Damaged(f"{what}; without --extract it is fetched as it is") from None
    finally:
        archive.unlink(missing_ok=True)
    return size


def _download(hub: Hub, artifact: Document, target: Path, progress: Progress | None) -> Path:
    """A file beside the target, whole and verified. One that was cut is gone on with by whoever asks again."""
    part = target.with_name(f".{target.name}.{artifact['id'][:12]}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    outage = Outage(hub.patience)
    with part.open("ab") as file:
        digest, done = _hash(part)
        while done < artifact["size"]:
            try:
                stream, first = hub.open_artifact(artifact["id"], done)
                if first != done:
                    file.truncate(0)
                    digest, done = hashlib.sha256(), 0
                for chunk in stream.chunks():
                    file.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    outage.over()
                    if progress is not None:
                        progress(done, artifact["size"])
            except HubUnreachable as error:
                outage.endure(error)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != artifact["id"]:
        part.unlink()
        raise Damaged(
            f"what came is not {artifact['id']}: it hashes to {digest.hexdigest()}; "
            f"`ostler artifacts verify {artifact['id'][:12]}` looks at the hub's copy"
        )
    return part


def _hash(path: Path) -> tuple["hashlib._Hash", int]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return digest, size
