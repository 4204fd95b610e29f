"""An attempt's folder on the file system that the nodes share: what the bridge writes there, and finds again."""

import contextlib
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ostler.bridge import script
from ostler.bridge.base import Ask
from ostler.runtime.attempts import LOG, OUT, WORK, is_attempt_name, is_file_name, open_plain
from ostler.runtime.base import Ended, Launch
from ostler.runtime.prune import remove

MOST_BYTES = 4096
ERROR_FILE = "error.txt"
"""A sentence in the task's folder that is told in place of a bare exit code."""


class Record(msgspec.Struct, kw_only=True):
    """What a later process of the bridge must know of an attempt."""

    task_id: str
    ask: Ask
    call: bool = False
    cores: float = 0.0
    """As the hub counts them, and so with the memory and the devices."""
    asked_mib: int = 0
    devices: tuple[int, ...] = ()
    deadline_s: float = 0.0
    lease_s: float = 0.0
    grace_s: float = 10.0
    after: list[str] = []
    checkpoint: str = ""
    job: str = ""
    """The batch system's name for it; "": it has not been submitted, or nobody has seen the answer."""
    stopped: str = ""
    """Why it was told to end."""
    fenced: bool = False
    """It had not begun when it was, and will not."""
    ended: Ended | None = None


class Exit(msgspec.Struct):
    code: int
    ran_s: float


_decode = msgspec.json.Decoder(Record).decode


class Folder:
    """Those of all attempts of one node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._saving = threading.Lock()

    def path(self, attempt: str) -> Path:
        if not is_attempt_name(attempt):
            raise ValueError(f"not an attempt id: {attempt!r}")
        return self.root / attempt

    def keep_script(self, attempt: str) -> Path:
        return self.path(attempt) / script.JOB / script.KEEP

    def write(self, launch: Launch, record: Record, contact_at: float) -> None:
        """All that the node needs; the record last, so that what has one is whole."""
        folder = self.path(launch.attempt)
        check_files(launch.files)
        job = folder / script.JOB
        for path in (folder, folder / WORK, folder / OUT, job):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in launch.files.items():
            _write(folder / name, content)
        run = script.run_script(
            launch.argv, {**launch.base, **launch.env}, str(job), str(folder / WORK), with_devices=bool(launch.devices)
        )
        keep = script.keep_script(str(job), str(folder / LOG), launch.lease_s, launch.grace_s)
        _write(job / script.RUN, os.fsencode(run))
        _write(job / script.KEEP, keep.encode())
        if launch.lease_s:
            self.write_contact([launch.attempt], contact_at)
        with self._saving:
            _replace(job / script.RECORD, msgspec.json.encode(record))

    def save(self, attempt: str, record: Record) -> None:
        """As it is now, where there is room for that: a later process finds out the same from what it has. Of an
        attempt that was forgotten meanwhile nothing is written."""
        with self._saving, contextlib.suppress(OSError):  # or an older record could come to stand over a newer one
            _replace(self.path(attempt) / script.JOB / script.RECORD, msgspec.json.encode(record))

    def contact(self, attempt: str) -> float:
        """When the hub was last in contact, as far as it was written down; 0.0: never."""
        try:
            return float((self.path(attempt) / script.JOB / script.CONTACT).read_text())
        except (OSError, ValueError):
            return 0.0

    def write_contact(self, attempts: Iterable[str], contact_at: float) -> None:
        for attempt in attempts:
            with contextlib.suppress(OSError):
                _replace(self.path(attempt) / script.JOB / script.CONTACT, b"%d\n" % contact_at)

    def records(self) -> dict[str, Record]:
        """Of every attempt that has not been forgotten."""
        found = {}
        for entry in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            record = entry / script.JOB / script.RECORD
            try:
                if is_attempt_name(entry.name):
                    found[entry.name] = _decode(record.read_bytes())
            except OSError:
                continue
            except msgspec.DecodeError:
                record.unlink()  # cut off by a crash: what runs of it is nobody's, and ended as such
        return found

    def began_at(self, attempt: str) -> float:
        """By the clock of the file system; 0: it has not begun."""
        job = self.path(attempt) / script.JOB
        try:
            os.listdir(job)  # a file system over the network looks again, and does not answer from memory
            begun = (job / script.BEGUN).stat()
        except OSError:
            return 0.0
        return begun.st_mtime if stat.S_ISDIR(begun.st_mode) else 0.0

    def fence(self, attempt: str) -> bool:
        """Keep it from beginning, on whichever node that would be. False: it has begun, or nobody knows."""
        try:
            (self.path(attempt) / script.JOB / script.BEGUN).touch(0o600, exist_ok=False)
        except FileNotFoundError:
            return True  # it has been forgotten, and has nothing to begin with
        except OSError:
            return self.is_fenced(attempt)
        return True

    def is_fenced(self, attempt: str) -> bool:
        return (self.path(attempt) / script.JOB / script.BEGUN).is_file()

    def exit(self, attempt: str) -> Exit | None:
        """What its main process left, and how long it ran."""
        words = self._read(attempt, script.EXIT).split()
        try:
            code, began, ended = int(words[0]), _seconds(words[1]), _seconds(words[2])
        except (ValueError, IndexError):
            return None
        return Exit(code, max(0.0, ended - began))

    def stopped(self, attempt: str) -> str:
        """Why the script on the node has ended it by itself, if it has."""
        return self._read(attempt, script.STOPPED).strip()

    def say(self, attempt: str, sentence: str) -> None:
        """For people, about its end."""
        with contextlib.suppress(OSError):
            _replace(self.path(attempt) / ERROR_FILE, sentence.encode())

    def forget(self, attempt: str) -> None:
        """Its log stays. A job of it that would begin after this finds nothing to run."""
        remove(self.path(attempt) / script.JOB)

    def _read(self, attempt: str, name: str) -> str:
        try:
            with open_plain(self.path(attempt) / script.JOB / name) as file:
                return file.read(MOST_BYTES).decode(errors="replace")
        except OSError:
            return ""


def check_files(files: dict[str, bytes]) -> None:
    wrong = [name for name in files if not is_file_name(name) or name == script.JOB]
    if wrong:
        raise ValueError(f"not a plain file name: {wrong[0]!r}")


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    _write(part, content)
    part.replace(path)


def _seconds(text: str) -> float:
    """Not every `date` knows of parts of a second."""
    return float(text.rstrip(".N%"))
