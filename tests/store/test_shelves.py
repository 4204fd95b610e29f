"""What every shelf promises, be it a folder or a bucket."""

import os
import time

import pytest
from tests.archive.test_unpack import announced
from tests.store.conftest import PART
from tests.store.sending import CutOff, chunks, cut, noise, sha256

from ostler.domain.errors import BadInput, NotFound
from ostler.domain.records import ArtifactRecord
from ostler.store.base import Shelf
from ostler.store.shelves import Shelves
from ostler.store.uploads import Span, Taken

SMALL, LARGE = noise(5000), noise(2 * PART + 150_000)
"""One that goes in one piece, and one that goes in three."""


def content(shelf: Shelf, one: str) -> bytes:
    with shelf.open(one) as file:
        return file.read()


@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
async def test_bytes_are_kept_under_their_hash_once(shelves: Shelves, data: bytes) -> None:
    store = shelves.artifacts()
    assert await store.put(sha256(data), chunks(data), size=len(data)) is Taken.NEW
    assert content(store.shelf, sha256(data)) == data
    assert store.size(sha256(data)) == len(data)
    assert await store.put(sha256(data), chunks(data), size=len(data)) is Taken.THERE
    assert [path.name for path in store.shelf.places()] == [sha256(data)]


async def test_what_is_not_what_its_name_says_leaves_nothing(shelves: Shelves) -> None:
    store, blobs = shelves.artifacts(), shelves.snapshots()
    with pytest.raises(BadInput, match="hash to"):
        await store.put(sha256(SMALL), chunks(SMALL[:-1] + b"!"))
    with pytest.raises(BadInput, match="hash to"):
        await blobs.put(sha256(SMALL), chunks(SMALL[:-1] + b"!"))
    for shelf in (store.shelf, blobs.shelf):
        assert not shelf.has(sha256(SMALL)) and list(shelf.places()) == []
        with pytest.raises(NotFound):
            shelf.open(sha256(SMALL))
    assert await store.put(sha256(SMALL), chunks(SMALL)) is Taken.NEW


async def test_a_cut_upload_leaves_nothing_visible_and_goes_on_with_the_rest(shelves: Shelves) -> None:
    store, one = shelves.artifacts(), sha256(LARGE)
    with pytest.raises(CutOff):
        await store.put(one, cut(LARGE[:700_000]), size=len(LARGE))
    assert (store.has(one), store.offset(one)) == (False, 700_000)
    span = Span(700_000, len(LARGE), len(LARGE))
    assert await store.put(one, chunks(LARGE[700_000:]), span) is Taken.NEW
    assert content(store.shelf, one) == LARGE


@pytest.mark.parametrize("name", ["", "short", "A" * 64, "../" + "a" * 61, "g" * 64])
async def test_what_is_no_hash_names_nothing(shelves: Shelves, name: str) -> None:
    store, blobs = shelves.artifacts(), shelves.snapshots()
    assert not store.has(name) and not blobs.has(name)
    for put in (store.put, blobs.put):
        with pytest.raises(BadInput, match="sha256"):
            await put(name, chunks(SMALL))
    for ask in (store.ask, blobs.ask):
        with pytest.raises(BadInput, match="sha256"):
            await ask(name, 10)


async def test_it_is_told_whether_it_is_compressed(shelves: Shelves) -> None:
    store, packed = shelves.artifacts(), announced(SMALL)
    await store.put(sha256(SMALL), chunks(SMALL))
    await store.put(sha256(packed), chunks(packed))
    plain, other = store.look(sha256(SMALL)), store.look(sha256(packed))
    assert plain is not None and other is not None
    assert (plain.compressed, other.compressed) == (False, True)


async def test_the_next_hub_finds_what_an_earlier_one_has_kept(shelves: Shelves) -> None:
    await shelves.artifacts().put(sha256(SMALL), chunks(SMALL))
    await shelves.snapshots().put(sha256(LARGE), chunks(LARGE))
    bucket = shelves.client.bucket if shelves.client is not None else None
    again = Shelves(shelves.folder, bucket)
    assert content(again.artifacts().shelf, sha256(SMALL)) == SMALL
    assert content(again.blobs(), sha256(LARGE)) == LARGE
    assert again.artifacts().matching(sha256(SMALL)[:7]) == [sha256(SMALL)]


async def test_what_is_read_may_be_sought_in(shelves: Shelves) -> None:
    store = shelves.artifacts()
    await store.put(sha256(LARGE), chunks(LARGE))
    with store.shelf.open(sha256(LARGE)) as file:
        assert file.read(10) == LARGE[:10]
        file.seek(700_000, os.SEEK_CUR)
        assert file.read(10) == LARGE[700_010:700_020]
        file.seek(5)
        assert file.read(5) == LARGE[5:10]
        file.seek(-3, os.SEEK_END)
        assert file.read() == LARGE[-3:]


async def test_a_line_says_where_an_artifact_is_found(shelves: Shelves) -> None:
    store = shelves.artifacts()
    await store.put(sha256(SMALL), chunks(SMALL))
    record = ArtifactRecord(id=sha256(SMALL), task_id="j1", job_id="j1", model="gbt", mode="fast", created_at=1.0)
    store.link(record)
    await store.settled()
    place = store.found_at(record, store.look(record.id))
    assert place is not None and sha256(SMALL) in place
    index = shelves.folder / "artifacts" / "index.jsonl"
    assert f'"path":"{place}"' in index.read_text()
    written = index.read_bytes()
    index.unlink()
    await Shelves(shelves.folder, shelves.client and shelves.client.bucket).artifacts().repair([record])
    assert index.read_bytes() == written


async def test_what_is_damaged_or_lost_is_found_out_and_may_be_brought_again(shelves: Shelves) -> None:
    store, one = shelves.artifacts(), sha256(SMALL)
    await store.put(one, chunks(SMALL))
    assert await store.verify(one)
    if shelves.client is None:
        store.shelf.place(one).unlink()
    else:
        [(key, _)] = shelves.client.keys(shelves.client.key("artifacts/objects/"))
        shelves.client.put(key, b"damaged", sha256(b"damaged"))
        assert not await store.verify(one)
        shelves.client.delete([key])
    assert not await store.verify(one)
    assert not store.has(one)
    assert await store.put(one, chunks(SMALL)) is Taken.NEW
    assert await store.verify(one)


# What nobody needs


async def test_what_is_removed_is_gone_and_may_be_brought_again(shelves: Shelves) -> None:
    store, one = shelves.artifacts(), sha256(SMALL)
    await store.put(one, chunks(SMALL))
    assert store.orphans((), time.time() + 1) == {one: len(SMALL)}
    async with store.removal([one], time.time() + 1) as going:
        assert going == {one: len(SMALL)}
        assert not store.touch(one)
    assert not store.has(one) and store.orphans((), time.time() + 1) == {}
    if shelves.client is not None:
        assert list(shelves.client.keys(shelves.client.key("artifacts/"))) == []
    assert await store.put(one, chunks(SMALL)) is Taken.NEW
    assert content(store.shelf, one) == SMALL


async def test_what_somebody_has_come_back_to_meanwhile_is_not_removed(shelves: Shelves) -> None:
    store, one = shelves.artifacts(), sha256(SMALL)
    await store.put(one, chunks(SMALL))
    before = time.time()
    assert store.touch(one)
    async with store.removal([one], before) as going:
        assert going == {}
    assert content(store.shelf, one) == SMALL


async def test_blobs_that_nobody_names_go_after_a_while(shelves: Shelves) -> None:
    store = shelves.checkpoints()
    data = [noise(100, seed) for seed in range(3)]
    for one in data:
        await store.put(sha256(one), chunks(one))
    old, named, young = (sha256(one) for one in data)
    for name in (old, named):
        os.utime(store.shelf.place(name), (time.time() - 1000,) * 2)
    store.prune([named], 900)
    assert [store.has(name) for name in (old, named, young)] == [False, True, True]
    store.remove(young)
    assert not store.has(young)
