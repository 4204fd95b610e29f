"""Bytes on their way into the store: cut, gone on with, taken over, and never seen before they are whole."""

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.store.sending import CutOff, Line, chunks, cut, noise, sha256

from ostler.domain.errors import BadInput, Conflict, NoSpace
from ostler.store import uploads
from ostler.store.artifacts import ArtifactStore
from ostler.store.uploads import Span, Taken, WrongUploadOffset

DATA = noise(3_500_000)
ID = sha256(DATA)
MIB = 1024 * 1024


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


def rest(first: int, total: int = len(DATA)) -> Span:
    return Span(first, total, total)


async def has_come(store: ArtifactStore, size: int) -> None:
    async with asyncio.timeout(60):
        while store.offset(ID) < size:  # noqa: ASYNC110  what a thread has written is seen by looking
            await asyncio.sleep(0.001)


def part(store_folder: Path) -> Path:
    return store_folder / ".arriving" / ID


def visible(folder: Path) -> list[str]:
    """Whatever is seen in the folder, but for the parts."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != ".arriving"
    )


async def test_bytes_are_kept_under_their_hash_once(store: ArtifactStore, tmp_path: Path) -> None:
    assert await store.put(ID, chunks(DATA), size=len(DATA)) is Taken.NEW
    assert store.shelf.place(ID).read_bytes() == DATA
    assert (store.size(ID), store.has(ID), store.offset(ID)) == (len(DATA), True, 0)
    assert await store.put(ID, chunks(DATA), size=len(DATA)) is Taken.THERE
    assert visible(tmp_path) == [f"objects/{ID[:2]}/{ID}"]
    assert not part(tmp_path).exists()


async def test_an_empty_artifact_is_an_artifact(store: ArtifactStore) -> None:
    assert await store.put(sha256(b""), chunks(b""), size=0) is Taken.NEW
    assert store.size(sha256(b"")) == 0


@pytest.mark.parametrize("name", ["", "short", "A" * 64, "../" + "a" * 61, "g" * 64])
async def test_what_is_no_hash_names_nothing(store: ArtifactStore, name: str) -> None:
    assert not store.has(name)
    with pytest.raises(BadInput, match="sha256"):
        await store.put(name, chunks(DATA))


async def test_a_cut_upload_leaves_nothing_visible_and_goes_on_with_the_rest(
    store: ArtifactStore, tmp_path: Path
) -> None:
    with pytest.raises(CutOff):
        await store.put(ID, cut(DATA[:2_000_000]), size=len(DATA))
    assert (visible(tmp_path), store.has(ID)) == ([], False)
    assert store.offset(ID) == 2_000_000, "all that has come is kept"
    assert await store.put(ID, chunks(DATA[2_000_000:]), rest(2_000_000)) is Taken.NEW
    assert store.shelf.place(ID).read_bytes() == DATA


async def test_a_cancelled_upload_goes_on_too(store: ArtifactStore) -> None:
    line = Line()
    putting = asyncio.create_task(store.put(ID, aiter(line), size=len(DATA)))
    line.say(DATA[: 2 * MIB])
    await has_come(store, 2 * MIB)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert store.offset(ID) == 2 * MIB
    assert await store.put(ID, chunks(DATA[2 * MIB :]), rest(2 * MIB)) is Taken.NEW


async def test_a_cut_upload_goes_on_after_a_restart(store: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(CutOff):
        await store.put(ID, cut(DATA[:2_000_000]))
    again = ArtifactStore(tmp_path)
    assert again.offset(ID) == 2_000_000
    assert await again.put(ID, chunks(DATA[2_000_000:]), rest(2_000_000)) is Taken.NEW
    assert again.shelf.place(ID).read_bytes() == DATA


async def test_an_upload_may_come_in_several_parts(store: ArtifactStore) -> None:
    steps = [0, 1, 1_500_000, 1_500_001, len(DATA)]
    taken = [
        await store.put(ID, chunks(DATA[first:end]), Span(first, end, len(DATA))) for first, end in pairwise(steps)
    ]
    assert taken == [Taken.PART, Taken.PART, Taken.PART, Taken.NEW]
    assert store.shelf.place(ID).read_bytes() == DATA


async def test_all_has_come_and_only_the_look_at_it_is_missing(store: ArtifactStore, tmp_path: Path) -> None:
    part(tmp_path).write_bytes(DATA)
    again = ArtifactStore(tmp_path)
    assert await again.put(ID, chunks(b""), rest(len(DATA))) is Taken.NEW


@pytest.mark.parametrize("first", [0, 1_999_999, 2_000_001])
async def test_a_part_that_does_not_begin_where_the_other_ends_is_refused(store: ArtifactStore, first: int) -> None:
    with pytest.raises(CutOff):
        await store.put(ID, cut(DATA[:2_000_000]))
    with pytest.raises(WrongUploadOffset, match="2000000 bytes") as refused:
        await store.put(ID, chunks(DATA[first:]), rest(first))
    assert refused.value.offset == 2_000_000
    assert store.offset(ID) == 2_000_000


async def test_nothing_goes_on_where_nothing_has_begun(store: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(WrongUploadOffset) as refused:
        await store.put(ID, chunks(DATA[5:]), rest(5))
    assert refused.value.offset == 0
    assert list((tmp_path / ".arriving").iterdir()) == []


async def test_without_a_range_an_upload_begins_anew(store: ArtifactStore) -> None:
    with pytest.raises(CutOff):
        await store.put(ID, cut(noise(1_000_000, seed=2)))
    assert await store.put(ID, chunks(DATA)) is Taken.NEW


@pytest.mark.parametrize("span", [None, Span(0, len(DATA), len(DATA))])
async def test_a_wrong_hash_leaves_nothing(store: ArtifactStore, tmp_path: Path, span: Span | None) -> None:
    with pytest.raises(BadInput, match="hash to"):
        await store.put(ID, chunks(DATA[:-1] + b"!"), span)
    assert (visible(tmp_path), store.offset(ID), part(tmp_path).exists()) == ([], 0, False)
    assert await store.put(ID, chunks(DATA)) is Taken.NEW


async def test_a_part_that_was_damaged_on_the_disk_is_found_out_and_dropped(
    store: ArtifactStore, tmp_path: Path
) -> None:
    with pytest.raises(CutOff):
        await store.put(ID, cut(DATA[:2_000_000]))
    part(tmp_path).write_bytes(b"0" * 2_000_000)
    again = ArtifactStore(tmp_path)
    with pytest.raises(BadInput, match="hash to"):
        await again.put(ID, chunks(DATA[2_000_000:]), rest(2_000_000))
    assert again.offset(ID) == 0


async def test_more_bytes_than_the_range_says_are_refused(store: ArtifactStore) -> None:
    with pytest.raises(BadInput, match="more bytes than"):
        await store.put(ID, chunks(DATA), Span(0, 1000, len(DATA)))
    assert not store.has(ID)


async def test_fewer_bytes_than_the_range_says_are_a_part(store: ArtifactStore) -> None:
    assert await store.put(ID, chunks(DATA[:1000]), Span(0, len(DATA), len(DATA))) is Taken.PART
    assert store.offset(ID) == 1000


# Two at once


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "QUIET_S", 0.05)


@pytest.mark.usefixtures("hurried")
async def test_a_newer_upload_takes_over_and_the_older_one_fails_at_its_next_write(store: ArtifactStore) -> None:
    older = Line()
    first = asyncio.create_task(store.put(ID, aiter(older), size=len(DATA)))
    older.say(DATA[: 2 * MIB])
    await has_come(store, 2 * MIB)
    newer = Line()
    second = asyncio.create_task(store.put(ID, aiter(newer), rest(2 * MIB)))
    newer.say(DATA[2 * MIB : 3 * MIB])
    await has_come(store, 3 * MIB)
    older.say(noise(2 * MIB, seed=3))
    older.say(noise(2 * MIB, seed=4))
    older.end()
    with pytest.raises(Conflict):
        await first
    newer.say(DATA[3 * MIB :])
    newer.end()
    assert await second is Taken.NEW
    assert store.shelf.place(ID).read_bytes() == DATA


@pytest.mark.usefixtures("hurried")
async def test_an_older_upload_that_comes_back_when_the_newer_one_is_done_finds_it_there(store: ArtifactStore) -> None:
    older = Line()
    first = asyncio.create_task(store.put(ID, aiter(older), size=len(DATA)))
    older.say(DATA[: 2 * MIB])
    await has_come(store, 2 * MIB)
    assert await store.put(ID, chunks(DATA)) is Taken.NEW
    older.say(DATA[2 * MIB :])
    older.end()
    assert await first is Taken.THERE
    assert store.shelf.place(ID).read_bytes() == DATA


async def test_from_an_upload_that_is_at_work_nobody_takes_over(store: ArtifactStore) -> None:
    line = Line()
    first = asyncio.create_task(store.put(ID, aiter(line), size=len(DATA)))
    line.say(DATA[:MIB])
    await has_come(store, MIB)
    second = asyncio.create_task(store.put(ID, chunks(DATA), size=len(DATA)))
    for start in range(MIB, len(DATA), 500_000):
        line.say(DATA[start : start + 500_000])
        await line.taken.wait()
    line.end()
    assert await first is Taken.NEW
    assert await second is Taken.THERE


async def test_of_many_uploads_of_one_artifact_that_go_on_all_end_with_it_there(store: ArtifactStore) -> None:
    async def bring() -> Taken:
        while True:
            offset = store.offset(ID)
            try:
                return await store.put(ID, chunks(DATA[offset:]), rest(offset))
            except WrongUploadOffset:
                await asyncio.sleep(0)

    taken = await asyncio.gather(*(bring() for _ in range(5)))
    assert taken.count(Taken.NEW) == 1
    assert taken.count(Taken.THERE) == 4
    assert store.shelf.place(ID).read_bytes() == DATA


async def test_different_artifacts_arrive_side_by_side(store: ArtifactStore) -> None:
    many = [noise(300_000, seed) for seed in range(20)]
    await asyncio.gather(*(store.put(sha256(data), chunks(data)) for data in many))
    assert all(store.shelf.place(sha256(data)).read_bytes() == data for data in many)


# The disk


def free(monkeypatch: pytest.MonkeyPatch, value: Callable[[], int]) -> None:
    real = shutil.disk_usage

    def usage(path: Any) -> Any:
        return real(path)._replace(total=2**40, free=value())

    monkeypatch.setattr(shutil, "disk_usage", usage)


async def test_what_would_fill_the_disk_is_refused_before_it_comes(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, lambda: 512 * MIB + len(DATA) - 1)
    with pytest.raises(NoSpace, match="do not fit"):
        await store.put(ID, chunks(DATA), size=len(DATA))
    with pytest.raises(NoSpace):
        await store.put(ID, chunks(DATA), rest(0))
    free(monkeypatch, lambda: 512 * MIB + len(DATA))
    assert await store.put(ID, chunks(DATA), size=len(DATA)) is Taken.NEW


async def test_room_that_another_upload_has_announced_is_not_promised_twice(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, lambda: 512 * MIB + 100 * MIB)
    line, other = Line(), noise(1000)
    first = asyncio.create_task(store.put(ID, aiter(line), size=90 * MIB))
    await line.taken.wait()
    with pytest.raises(NoSpace):
        await store.put(sha256(other), chunks(other), Span(0, 1000, 20 * MIB))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await store.put(sha256(other), chunks(other), Span(0, 1000, 20 * MIB)) is Taken.PART


async def test_a_disk_that_fills_up_meanwhile_stops_an_upload_that_announced_nothing(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "SYNC_BYTES", MIB)
    room = [2000 * MIB]
    free(monkeypatch, lambda: room[0])
    line = Line()
    putting = asyncio.create_task(store.put(ID, aiter(line)))
    line.say(DATA[:MIB])
    await has_come(store, MIB)
    room[0] = 100 * MIB
    line.say(DATA[MIB : 2 * MIB])
    line.end()
    with pytest.raises(NoSpace):
        await putting
    room[0] = 2000 * MIB
    offset = store.offset(ID)
    assert offset >= MIB
    assert await store.put(ID, chunks(DATA[offset:]), rest(offset)) is Taken.NEW


async def test_a_write_that_fails_half_way_is_made_good_when_the_upload_goes_on(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.write, []

    def write(descriptor: int, data: Any) -> int:
        calls.append(len(data))
        if len(calls) == 20:
            real(descriptor, data[:100])
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(uploads.os, "write", write)
    with pytest.raises(NoSpace, match="disk is full"):
        await store.put(ID, chunks(DATA))
    offset = store.offset(ID)
    assert offset == 19 * 64 * 1024 + 100
    assert await store.put(ID, chunks(DATA[offset:]), rest(offset)) is Taken.NEW
    assert store.shelf.place(ID).read_bytes() == DATA


async def test_the_event_loop_goes_on_while_the_disk_does_not(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Event(), threading.Event()
    real = os.write

    def write(descriptor: int, data: Any) -> int:
        writing.set()
        assert go_on.wait(60)
        return real(descriptor, data)

    monkeypatch.setattr(uploads.os, "write", write)
    putting = asyncio.create_task(store.put(ID, chunks(DATA)))
    await asyncio.to_thread(writing.wait, 20)
    assert store.offset(ID) == 0
    go_on.set()
    assert await putting is Taken.NEW


def test_parts_that_nobody_has_gone_on_with_for_a_week_are_dropped_at_the_start(tmp_path: Path) -> None:
    ArtifactStore(tmp_path)
    old, young = tmp_path / ".arriving" / ("a" * 64), tmp_path / ".arriving" / ("b" * 64)
    for path, days in ((old, 8), (young, 6)):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - days * 86400,) * 2)
    ArtifactStore(tmp_path)
    assert (old.exists(), young.exists()) == (False, True)
