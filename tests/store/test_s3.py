"""What only a bucket has: bytes that go there past the hub, and a store that is away."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.store.conftest import PART
from tests.store.s3_server import SECRET, Cutter, Server
from tests.store.sending import chunks, noise, sha256
from yarl import URL

from ostler.domain.errors import BadInput, StoreAway
from ostler.store import bucket as bucket_module
from ostler.store import s3
from ostler.store.base import Asked, Piece
from ostler.store.bucket import Bucket, Client, read_bucket
from ostler.store.s3 import Abilities, probe
from ostler.store.shelves import Shelves
from ostler.store.uploads import Span, Taken
from ostler.worker import direct
from ostler.worker.direct import NotReached

SMALL, LARGE = noise(5000), noise(2 * PART + 150_000)
ASKED_FOR_IT = 200_000
"""More than all that is said about an object, less than one."""


@pytest.fixture
def bucket(client: Client) -> Bucket:
    return client.bucket


@pytest.fixture
async def line(server: Server) -> AsyncIterator[Cutter]:
    async with Cutter(server).serving() as cutter:
        yield cutter


@pytest.fixture
def shelves(tmp_path: Path, bucket: Bucket) -> Shelves:
    return Shelves(tmp_path / "store", bucket)


def through(shelves: Shelves, line: Cutter) -> Shelves:
    """The same, where others reach the store by this line."""
    assert shelves.client is not None
    given = {name: getattr(shelves.client.bucket, name) for name in Bucket.__struct_fields__}
    return Shelves(shelves.folder, Bucket(**(given | {"public_endpoint": line.url})))


def keys(shelves: Shelves, *parts: str) -> list[str]:
    assert shelves.client is not None
    return [key for key, _ in shelves.client.keys(shelves.client.key(*parts))]


async def send(piece: Piece, file: Path) -> None:
    await direct.put(direct.Piece(piece.url, piece.first, piece.end, piece.headers), file, lambda _: None)


def written(folder: Path, data: bytes) -> Path:
    file = folder / sha256(data)[:8]
    file.write_bytes(data)
    return file


async def asked(shelves: Shelves, data: bytes) -> Asked:
    found = await shelves.artifacts().ask(sha256(data), len(data))
    assert found is not None
    return found


# Past the hub


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("compares", "computes"), [(True, True), (False, True), (False, False)])
async def test_bytes_go_past_the_hub_and_are_seen_when_they_are_verified(
    shelves: Shelves, server: Server, tmp_path: Path, data: bytes, compares: bool, computes: bool
) -> None:
    server.compares, server.computes = compares, computes
    store, file = shelves.artifacts(), written(tmp_path, data)
    first = await store.ask(sha256(data), len(data))
    assert first is not None and not first.whole
    assert [(piece.first, piece.end) for piece in first.pieces][-1][1] == len(data)
    for piece in first.pieces:
        await send(piece, file)
        assert not store.has(sha256(data)) and keys(shelves, "artifacts/objects/") == []
    sent = server.sent
    last = await store.ask(sha256(data), len(data))
    assert last == Asked(len(data), whole=True)
    read_by_hub = server.sent - sent
    assert read_by_hub > len(data) if (data is LARGE and not computes) else read_by_hub < ASKED_FOR_IT
    with store.shelf.open(sha256(data)) as stored:
        assert stored.read() == data
    assert keys(shelves, "artifacts/arriving/") == []
    assert await store.ask(sha256(data), len(data)) == last


async def test_what_is_too_large_to_be_copied_at_once_is_read_and_copied_in_parts(
    shelves: Shelves, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (bucket_module, s3):
        monkeypatch.setattr(module, "MOST_COPIED", PART + 1000)
    store, file = shelves.artifacts(), written(tmp_path, LARGE)
    for piece in (await asked(shelves, LARGE)).pieces:
        await send(piece, file)
    sent = server.sent
    assert (await asked(shelves, LARGE)).whole
    assert server.sent - sent > len(LARGE), "such a large one no store computes the hash of"
    with store.shelf.open(sha256(LARGE)) as stored:
        assert stored.read() == LARGE
    assert shelves.client is not None and shelves.client.begun("") == []


async def test_an_upload_that_was_cut_goes_on_with_the_next_part(
    shelves: Shelves, line: Cutter, tmp_path: Path
) -> None:
    shelves, file = through(shelves, line), written(tmp_path, LARGE)
    plan = await asked(shelves, LARGE)
    assert len(plan.pieces) == 3
    line.after = PART + PART // 2
    await send(plan.pieces[0], file)
    with pytest.raises(NotReached):
        await send(plan.pieces[1], file)
    assert line.cuts == 1
    plan = await asked(Shelves(shelves.folder, shelves.client.bucket if shelves.client else None), LARGE)
    assert (plan.size, [piece.first for piece in plan.pieces]) == (PART, [PART, 2 * PART])
    for piece in plan.pieces:
        await send(piece, file)
    assert (await asked(shelves, LARGE)).whole


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("compares", "repeats"), [(True, False), (False, True), (False, False)])
async def test_what_is_not_what_its_name_says_is_refused_and_removed(
    shelves: Shelves, server: Server, tmp_path: Path, data: bytes, compares: bool, repeats: bool
) -> None:
    server.compares, server.repeats, server.computes = compares, repeats, False
    file = written(tmp_path, data[:-1] + b"!")
    plan = await asked(shelves, data)
    if data is SMALL and compares:
        with pytest.raises(NotReached, match="ChecksumMismatch"):
            await send(plan.pieces[0], file)
    else:
        for piece in plan.pieces:
            await send(piece, file)
        with pytest.raises(BadInput, match="hash to"):
            await asked(shelves, data)
    assert not shelves.artifacts().has(sha256(data))
    assert keys(shelves, "artifacts/") == []
    assert (await asked(shelves, data)).size == 0


async def test_an_address_is_good_for_what_it_was_given_for_and_nothing_else(shelves: Shelves, tmp_path: Path) -> None:
    [piece] = (await asked(shelves, SMALL)).pieces
    other = sha256(b"other")

    async def put(url: str, data: bytes, headers: dict[str, str]) -> int:
        address = URL(url, encoded=True)
        async with aiohttp.ClientSession() as session, session.put(address, data=data, headers=headers) as answer:
            return answer.status

    without = {name: value for name, value in piece.headers.items() if name != "x-amz-checksum-sha256"}
    assert await put(piece.url, SMALL, without) == 403
    assert await put(piece.url.replace(sha256(SMALL), other), SMALL, piece.headers) == 403
    assert await put(piece.url, SMALL + b"more", piece.headers | {"Content-Length": str(len(SMALL) + 4)}) == 403
    assert await put(piece.url, SMALL, piece.headers | {"x-amz-acl": "public-read"}) == 403
    assert await put(piece.url, SMALL, piece.headers) == 200


async def test_one_who_has_only_heard_of_bytes_proves_nothing_by_what_another_brings(
    shelves: Shelves, tmp_path: Path
) -> None:
    blobs, file = shelves.snapshots(), written(tmp_path, SMALL)
    anns, bobs = [await blobs.ask(sha256(SMALL), len(SMALL), whose) for whose in ("ann", "bob")]
    assert anns is not None and bobs is not None
    await send(anns.pieces[0], file)
    again = await blobs.ask(sha256(SMALL), len(SMALL), "bob")
    assert again is not None and not again.whole
    anns = await blobs.ask(sha256(SMALL), len(SMALL), "ann")
    assert anns is not None and anns.whole
    again = await blobs.ask(sha256(SMALL), len(SMALL), "bob")
    assert again is not None and not again.whole, "it is there, and bob has yet to show that he has it"
    await send(again.pieces[0], file)
    again = await blobs.ask(sha256(SMALL), len(SMALL), "bob")
    assert again is not None and again.whole
    assert keys(shelves, "snapshots/arriving/") == []


async def test_a_user_called_hub_proves_nothing_by_what_the_hub_passes_on(shelves: Shelves, client: Client) -> None:
    client.put(client.key("snapshots/arriving/hub", sha256(SMALL)), SMALL, sha256(SMALL))
    found = shelves.blobs().ask(sha256(SMALL), len(SMALL), "hub")
    assert found is not None and not found.whole and len(found.pieces) == 1


async def test_bytes_that_are_exchanged_while_they_are_read_are_not_taken_in(
    shelves: Shelves, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.compares = server.computes = False
    store, client, bad = shelves.artifacts(), shelves.client, noise(len(SMALL), seed=2)
    assert client is not None
    key, get, copy = client.key("artifacts/arriving/workers", sha256(SMALL)), client.get, client.copy

    def shown(*args: Any, **more: Any) -> Any:
        client.put(key, SMALL, sha256(SMALL))
        return get(*args, **more)

    def exchanged(*args: Any) -> Any:
        client.put(key, bad, sha256(bad))
        return copy(*args)

    client.put(key, bad, sha256(bad))
    monkeypatch.setattr(client, "get", shown)
    monkeypatch.setattr(client, "copy", exchanged)
    with pytest.raises(StoreAway, match="PreconditionFailed"):
        await store.ask(sha256(SMALL), len(SMALL))
    assert not store.has(sha256(SMALL)) and keys(shelves, "artifacts/objects/") == []


async def test_of_many_who_bring_the_same_all_end_with_it_there(shelves: Shelves, tmp_path: Path) -> None:
    store, file = shelves.artifacts(), written(tmp_path, SMALL)

    async def bring() -> None:
        while True:
            plan = await store.ask(sha256(SMALL), len(SMALL))
            assert plan is not None
            if plan.whole:
                return
            await send(plan.pieces[0], file)

    await asyncio.gather(*(bring() for _ in range(5)))
    with store.shelf.open(sha256(SMALL)) as stored:
        assert stored.read() == SMALL


async def test_of_those_who_wait_for_the_same_bytes_none_holds_a_thread_for_long(
    shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "TURN_S", 0.05)
    shelf = shelves.blobs()
    assert isinstance(shelf, s3.S3Shelf)
    with shelf._turns.of(sha256(SMALL)), pytest.raises(StoreAway, match="ask again later"):
        await shelves.snapshots().ask(sha256(SMALL), len(SMALL))
    assert await shelves.snapshots().ask(sha256(SMALL), len(SMALL))


async def test_what_is_fetched_past_the_hub_comes_from_the_store(shelves: Shelves) -> None:
    store = shelves.artifacts()
    await store.put(sha256(SMALL), chunks(SMALL))
    came = [piece async for piece in direct.pieces_at(store.shelf.link(sha256(SMALL)))]
    assert b"".join(came) == SMALL
    changed = store.shelf.link(sha256(SMALL)).replace("X-Amz-Expires=3600", "X-Amz-Expires=9999")
    with pytest.raises(NotReached, match="403"):
        [piece async for piece in direct.pieces_at(changed)]


# What nobody goes on with


async def test_what_was_begun_long_ago_is_cleared_away(shelves: Shelves, server: Server, tmp_path: Path) -> None:
    assert shelves.client is not None
    store, file = shelves.artifacts(), written(tmp_path, LARGE)
    plan = await asked(shelves, LARGE)
    await send(plan.pieces[0], file)
    begun = shelves.client.key("artifacts/arriving/")
    store.shelf.tidy()
    assert len(shelves.client.begun(begun)) == 1, "somebody may yet go on with it"
    server.begun_ago = timedelta(days=8)
    try:
        store.shelf.tidy()
        assert shelves.client.begun(begun) == []
    finally:
        server.begun_ago = timedelta()
    assert (await asked(shelves, LARGE)).size == 0


async def test_what_is_brought_again_while_it_is_being_removed_stays(shelves: Shelves, server: Server) -> None:
    shelf, blobs = shelves.blobs(), shelves.snapshots()
    await blobs.put(sha256(SMALL), chunks(SMALL))
    server.deleting.clear()
    server.may_delete.clear()
    try:
        blobs.remove(sha256(SMALL))
        assert await asyncio.to_thread(server.deleting.wait, 20)
        again = asyncio.create_task(blobs.put(sha256(SMALL), chunks(SMALL)))
        done, _ = await asyncio.wait([again], timeout=0.3)
        assert not done, "whoever removes it is first"
    finally:
        server.may_delete.set()
    assert await again
    with shelf.open(sha256(SMALL)) as stored:
        assert stored.read() == SMALL


# A store that is away


async def test_what_has_come_is_kept_while_the_store_is_away_and_goes_there_later(
    shelves: Shelves, server: Server
) -> None:
    store = shelves.artifacts()
    server.away = True
    with pytest.raises(StoreAway, match=r"ostler doctor|SlowDown"):
        await store.put(sha256(SMALL), chunks(SMALL), size=len(SMALL))
    with pytest.raises(StoreAway):
        await store.ask(sha256(LARGE), len(LARGE))
    assert (store.has(sha256(SMALL)), store.offset(sha256(SMALL))) == (False, len(SMALL))
    server.away = False
    span = Span(len(SMALL), len(SMALL), len(SMALL))
    assert await store.put(sha256(SMALL), chunks(b""), span) is Taken.NEW
    with store.shelf.open(sha256(SMALL)) as stored:
        assert stored.read() == SMALL


@pytest.mark.parametrize("past_hub", [True, False])
async def test_what_was_removed_while_the_store_was_away_goes_when_it_is_back(
    shelves: Shelves, server: Server, tmp_path: Path, past_hub: bool
) -> None:
    store, other = shelves.artifacts(), noise(100)
    for data in (SMALL, other):
        await store.put(sha256(data), chunks(data))
    server.away = True
    async with store.removal([sha256(SMALL), sha256(other)], sys.float_info.max):
        pass
    assert not store.has(sha256(SMALL)) and not store.has(sha256(other))
    server.away = False
    assert len(keys(shelves, "artifacts/objects/")) == 2
    if past_hub:
        await send((await asked(shelves, SMALL)).pieces[0], written(tmp_path, SMALL))
        assert (await asked(shelves, SMALL)).whole
    else:
        assert await store.put(sha256(SMALL), chunks(SMALL)) is Taken.NEW
    async with store.removal([], 0):
        pass
    [left] = keys(shelves, "artifacts/objects/")
    assert left.endswith(sha256(SMALL)), "what was brought again stays"
    assert await store.verify(sha256(SMALL))


async def test_a_store_that_nobody_answers_for_is_told_with_what_to_do(tmp_path: Path, bucket: Bucket) -> None:
    given = {name: getattr(bucket, name) for name in Bucket.__struct_fields__}
    nobody = Shelves(tmp_path, Bucket(**(given | {"endpoint": "http://127.0.0.1:9"})))
    with pytest.raises(StoreAway, match=r"cannot be used now .*127.0.0.1:9.*ostler doctor") as told:
        await nobody.artifacts().put(sha256(SMALL), chunks(SMALL))
    assert told.value.status == 503


def test_a_bucket_that_is_not_there_is_told(server: Server, bucket: Bucket) -> None:
    given = {name: getattr(bucket, name) for name in Bucket.__struct_fields__}
    with pytest.raises(StoreAway, match="NoSuchBucket"):
        probe(Client(Bucket(**(given | {"name": "not-there"}))))


@pytest.mark.parametrize(("compares", "computes"), [(True, True), (False, True), (False, False)])
def test_what_a_store_does_with_hashes_is_found_out_by_trying(
    server: Server, client: Client, compares: bool, computes: bool
) -> None:
    server.compares, server.computes = compares, computes
    assert probe(client) == Abilities(compares, computes)
    assert list(client.keys("")) == []


# Where it is


def test_a_bucket_is_shown_without_its_key() -> None:
    bucket = read_bucket(
        "s3://lab/ostler/", {"access_key_id": "AKIA1", "secret_access_key": "s3cret", "endpoint": "http://x"}
    )
    assert str(bucket) == repr(bucket) == "s3://lab/ostler at http://x"


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://a/../b", "s3://a/b//c", "s3://a?x=1", "s3://k:s@a/b"])
def test_what_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="store: "):
        read_bucket(url)


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(BadInput, match=r"pip install botocore"):
        Client(Bucket(name="b"))


async def test_what_was_removed_is_not_forgotten_because_it_could_not_be_brought_again(
    shelves: Shelves, server: Server
) -> None:
    store = shelves.artifacts()
    await store.put(sha256(SMALL), chunks(SMALL))
    server.away = True
    async with store.removal([sha256(SMALL)], sys.float_info.max):
        pass
    with pytest.raises(StoreAway):
        await store.put(sha256(SMALL), chunks(SMALL))
    server.away = False
    store.shelf.clear()
    assert keys(shelves, "artifacts/objects/") == []


async def test_a_store_that_is_away_is_not_asked_again_for_each_that_is_removed(
    shelves: Shelves, server: Server
) -> None:
    blobs, many = shelves.snapshots(), [noise(10, seed) for seed in range(12)]
    for data in many:
        await blobs.put(sha256(data), chunks(data))
    server.away, before = True, server.requests
    for data in many:
        blobs.remove(sha256(data))
    await asyncio.to_thread(blobs._clearing.shutdown)
    assert server.requests - before <= 2 * bucket_module.TRIES
    server.away = False
    blobs.shelf.clear()
    assert keys(shelves, "snapshots/objects/") == []


async def test_a_log_for_those_who_look_for_faults_tells_neither_keys_nor_signatures(
    shelves: Shelves, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        await shelves.snapshots().put(sha256(SMALL), chunks(SMALL))
        shelves.blobs().link(sha256(SMALL))
    assert SECRET not in caplog.text and "ignature" not in caplog.text


# Logs


async def test_a_log_that_was_moved_is_read_as_before(shelves: Shelves) -> None:
    logs, text = shelves.logs(), noise(200_000)
    logs.append("a1", 0, text)
    logs.let_go("a1", logs.copy_out("a1"))
    assert not list(shelves.folder.glob("logs/*/*.log"))
    assert (logs.size("a1"), logs.reached("a1")) == (len(text), len(text))
    assert logs.read("a1", 150_000, 1_000_000) == text[150_000:]
    assert logs.read("a1", len(text)) == b""
    assert logs.append("a1", len(text), b"late") == len(text) + 4
    assert logs.read("a1", 199_990, 100) == text[199_990:] + b"late"
    logs.let_go("a1", logs.copy_out("a1"))
    logs.forget("a1")
    assert logs.size("a1") == 0 and keys(shelves, "logs/") == []


async def test_a_log_that_has_grown_meanwhile_stays(shelves: Shelves) -> None:
    logs = shelves.logs()
    logs.append("a1", 0, b"one")
    size = logs.copy_out("a1")
    logs.append("a1", 3, b"two")
    logs.let_go("a1", size)
    assert list(shelves.folder.glob("logs/*/*.log")) and logs.read("a1", 0) == b"onetwo"


async def test_a_note_that_a_power_cut_has_emptied_is_asked_for_in_the_bucket(shelves: Shelves) -> None:
    store, name = shelves.artifacts(), sha256(SMALL)
    await store.put(name, chunks(SMALL))
    store.shelf.place(name).write_bytes(b"")
    assert not store.shelf.has(name)
    with await asyncio.to_thread(store.shelf.open, name) as file:
        assert file.read() == SMALL
    assert store.size(name) == len(SMALL)
