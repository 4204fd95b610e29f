"""Disks that are full: first so far that the hub keeps the rest for what runs already, then to the last byte."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.process_fleet import until, usable

from chaos import program
from chaos.judge import Allowed
from chaos.load import Terms
from chaos.trial import FleetUnderLoad, Ground, Trial, fleet_under_load

WORKERS = ("ash", "birch")
DISK_MIB = 1024
LEFT_MIB = 24
"""Less than the hub keeps in reserve, and more than what runs needs for a while."""
SLACK = 1 << 20
"""Others write meanwhile."""
ROUNDS = 2
FULL_S = (3.0, 7.0)
MANY = Terms(per_s=10.0, most_live=40, long_s=(2.0, 8.0))
BACK_S = 60.0


class NoMounts(Exception):
    """No disk can be mounted here: run it as root."""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "chaos"]
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise NoMounts(done.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)


def hub(ground: Ground, trial: Trial) -> None:
    """The hub's disk, under load. It says no to what it could not keep, and what it said yes to is there: whether it
    goes on, or ends and is started again as a service is."""
    draw = ground.draw()
    with (
        small_disk(ground.folder / "disk") as disk,
        fleet_under_load(
            ground, trial, WORKERS, times=program.IMPATIENT, terms=MANY, disks=_apart(ground, disk)
        ) as here,
    ):
        stopped, answers = 0, 0
        for number in range(ground.times(ROUNDS) * 2):
            stopped += here.fleet.attend(draw.uniform(1.0, 3.0))
            left_mib = LEFT_MIB if number % 2 == 0 else 0
            refused = sum(here.load.refused.values())
            with _filled(disk, left_mib):
                trial.count(f"the hub's disk full{' but for its reserve' if left_mib else ''}")
                stopped += here.fleet.attend(draw.uniform(*FULL_S))
                answers += sum(here.load.refused.values()) - refused
            stopped += _until_back(here)
        trial.figures |= {"submits not taken while it was full": answers, "times the hub stopped for it": stopped}


def worker(ground: Ground, trial: Trial) -> None:
    """A worker's disk, under load. What runs there may fail of it and is said to have; nothing is lost or runs twice,
    and with room again the machine is as good as before."""
    draw = ground.draw()
    with (
        small_disk(ground.folder / "disk") as disk,
        fleet_under_load(
            ground, trial, WORKERS, times=program.IMPATIENT, terms=MANY, disks={"ash": disk}, allowed=_MAY_FAIL
        ) as here,
    ):
        stopped = 0
        for _ in range(ground.times(ROUNDS)):
            stopped += here.fleet.attend(draw.uniform(1.0, 3.0))
            with _filled(disk, 0):
                trial.count("a worker's disk full")
                stopped += here.fleet.attend(draw.uniform(*FULL_S))
            stopped += _until_back(here)
        after = _fails_after(here)
        trial.figures["times the worker stopped for it"] = stopped
    trial.promise("with room again, jobs succeed there", 1, after)


_MAY_FAIL = Allowed(failures=True, runs_again=True, dies=True, unprinted=True)


def _apart(ground: Ground, disk: Path) -> dict[str, Path]:
    """The hub's state there, the workers' not."""
    return {"hub": disk / "state", **{name: ground.folder / f"state-{name}" for name in WORKERS}}


@contextmanager
def _filled(disk: Path, left_mib: int) -> Iterator[None]:
    filler = disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):  # somebody was faster
                os.posix_fallocate(file.fileno(), 0, max(1, _free(disk) - (left_mib << 20) - SLACK))
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while _free(disk) > left_mib << 20:
                        os.pwrite(file.fileno(), b"\0" * size, file.seek(0, os.SEEK_END))
        yield
    finally:
        filler.unlink(missing_ok=True)


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def _until_back(here: FleetUnderLoad) -> int:
    """Both workers at a hub that answers; how often somebody had to be started for it."""
    started = 0

    def back() -> bool:
        nonlocal started
        started += here.fleet.attend(0.5)
        with contextlib.suppress(Exception):
            return all(usable(here.fleet.worker(name)) for name in WORKERS)
        return False

    until(back, f"all are back: {here.fleet.log_of('hub')}{here.fleet.log_of('ash')}", BACK_S)
    return started


def _fails_after(here: FleetUnderLoad) -> list[str]:
    sent = here.load.submit("short", labels=["stall == ash"])
    assert sent is not None
    ended = here.fleet.client.wait(sent.id, timeout=BACK_S)
    return [] if ended["state"] == "succeeded" else [f"{sent.id} on ash: {ended['state']}, {ended['reason']}"]
