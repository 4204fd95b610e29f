"""Long logs of running tasks give back their middle."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.worker.conftest import eventually

from ostler.worker import trimming
from ostler.worker.logs import BEHIND, END_PART
from ostler.worker.trimming import keep_short, trim

KIB = 1024


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "KEEP_HEAD", 64 * KIB)
    monkeypatch.setattr(trimming, "KEEP_TAIL", 256 * KIB)
    monkeypatch.setattr(trimming, "SLACK", 256 * KIB)
    monkeypatch.setattr(trimming, "EVERY_S", 0.01)


def test_what_is_read_later_is_always_among_what_is_kept() -> None:
    assert END_PART <= 8 * KIB * KIB
    assert BEHIND < 128 * KIB * KIB


def test_the_middle_of_a_long_log_goes_and_every_offset_stays(tmp_path: Path) -> None:
    log, data = tmp_path / "log", os.urandom(2 * KIB * KIB)
    log.write_bytes(data)
    assert trim(str(log)) > KIB * KIB
    assert log.stat().st_size == len(data)
    assert log.stat().st_blocks * 512 <= 512 * KIB
    left = log.read_bytes()
    assert left[: 64 * KIB] == data[: 64 * KIB]
    assert left[-256 * KIB :] == data[-256 * KIB :]
    assert trim(str(log)) == 0


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    log, data = tmp_path / "log", os.urandom(500 * KIB)
    log.write_bytes(data)
    assert trim(str(log)) == 0
    assert log.read_bytes() == data
    assert trim(str(tmp_path / "none")) == 0


async def test_a_task_that_prints_a_lot_takes_a_bounded_part_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a1").mkdir()
    log = tmp_path / "a1" / "log"
    with log.open("ab") as output:
        printing = await asyncio.create_subprocess_exec("sh", "-c", "yes | head -c 50000000", stdout=output)
    trimming = asyncio.create_task(keep_short(lambda attempt: str(tmp_path / attempt), lambda: ["a1", "another"]))
    await printing.wait()
    await eventually(lambda: log.stat().st_blocks * 512 <= 600 * KIB)
    trimming.cancel()
    assert log.stat().st_size == 50_000_000
    with log.open("rb") as file:
        assert file.read(64 * KIB) == b"y\n" * (32 * KIB)
        file.seek(-256 * KIB, os.SEEK_END)
        assert file.read() == b"y\n" * (128 * KIB)
