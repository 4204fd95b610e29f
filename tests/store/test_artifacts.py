"""The folder of artifacts: names that say whose they are, the index, what is found damaged, what nobody needs."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.archive.test_unpack import announced
from tests.store.sending import Line, chunks, noise, sha256

from ostler.domain.errors import NotFound
from ostler.domain.records import ArtifactRecord
from ostler.store.artifacts import ArtifactStore
from ostler.store.uploads import Span, Taken

PLAIN, PACKED = noise(5000), announced(noise(5000))
Lines = list[dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


def record(data: bytes = PLAIN, task: str = "j1", **more: Any) -> ArtifactRecord:
    known: dict[str, Any] = {"model": "gbt", "mode": "realistic", "created_at": 1_750_000_000.25}
    return ArtifactRecord(**(known | {"id": sha256(data), "task_id": task, "job_id": task} | more))


async def kept(store: ArtifactStore, *records: ArtifactRecord, data: bytes = PLAIN) -> None:
    await store.put(sha256(data), chunks(data))
    for one in records:
        store.link(one)
    await store.settled()


def lines(folder: Path) -> Lines:
    return [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]


def names(folder: Path) -> list[str]:
    """Every file that is neither an object nor the index."""
    found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in found if not name.startswith("objects/") and name != "index.jsonl")


async def removed(store: ArtifactStore, ids: list[str], untouched_since: float) -> dict[str, int]:
    async with store.removal(ids, untouched_since) as going:
        return going


# Names and lines


@pytest.mark.parametrize(("data", "name"), [(PLAIN, "bundle.tar"), (PACKED, "bundle.tar.zst")])
async def test_an_artifact_is_found_under_its_model_and_mode(
    store: ArtifactStore, tmp_path: Path, data: bytes, name: str
) -> None:
    told = record(data, attempt="a1", worker="pi", name="gbt-realistic", metrics={"f1": 0.5})
    await kept(store, told, data=data)
    path = f"gbt_realistic/{sha256(data)}/{name}"
    assert names(tmp_path) == [path]
    assert (tmp_path / path).read_bytes() == data
    assert (tmp_path / path).samefile(store.shelf.place(sha256(data))), "it does not take its room twice"
    assert lines(tmp_path) == [
        {
            "artifact_id": sha256(data),
            "job": "j1",
            "name": "gbt-realistic",
            "task": "j1",
            "attempt": "a1",
            "worker": "pi",
            "model": "gbt",
            "mode": "realistic",
            "size": len(data),
            "time": "2025-06-15T15:06:40.250Z",
            "metrics": {"f1": 0.5},
            "path": path,
        }
    ]


@pytest.mark.parametrize(
    ("model", "mode", "folder"),
    [
        ("", "", "jobs"),
        ("", "realistic", "jobs"),
        ("gbt", "", "gbt_"),
        ("..", "..", "-._-."),
        ("../../etc", "/", "-.-..-etc_-"),
        ("größe 7", "a\nb\0", "gr--e-7_a-b-"),
        ("x" * 300, "y", "x" * 64 + "_y"),
        ("objects", "", "objects_"),
    ],
)
async def test_names_lead_nowhere_else(
    store: ArtifactStore, tmp_path: Path, model: str, mode: str, folder: str
) -> None:
    await kept(store, record(model=model, mode=mode))
    assert names(tmp_path) == [f"{folder}/{sha256(PLAIN)}/bundle.tar"]


async def test_linking_again_changes_nothing(store: ArtifactStore, tmp_path: Path) -> None:
    await kept(store, record(), record(), record(attempt="other"))
    assert len(lines(tmp_path)) == 1


async def test_an_artifact_of_several_tasks_is_kept_once_and_has_a_line_for_each(
    store: ArtifactStore, tmp_path: Path
) -> None:
    await kept(store, record(task="j1"), record(task="j2"), record(task="j3", model="mlp"))
    assert [line["task"] for line in lines(tmp_path)] == ["j1", "j2", "j3"]
    assert len(names(tmp_path)) == 2
    assert store.shelf.place(sha256(PLAIN)).stat().st_nlink == 3


async def test_where_there_are_no_hard_links_it_is_copied(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    await kept(store, record())
    assert names(tmp_path) == [f"gbt_realistic/{sha256(PLAIN)}/bundle.tar"]
    assert (tmp_path / names(tmp_path)[0]).read_bytes() == PLAIN


async def test_a_record_without_bytes_gets_neither_name_nor_line(store: ArtifactStore, tmp_path: Path) -> None:
    store.link(record(noise(10)))
    store.link(record(id="no-hash"))
    await store.settled()
    assert names(tmp_path) == []
    assert not (tmp_path / "index.jsonl").exists()


async def test_what_a_crash_left_out_is_made_up_for(store: ArtifactStore, tmp_path: Path) -> None:
    await kept(store, record(task="j1"))
    await store.put(sha256(PACKED), chunks(PACKED))
    again = ArtifactStore(tmp_path)
    await again.repair([record(task="j1"), record(task="j2"), record(PACKED, task="j3")])
    await again.repair([record(task="j1"), record(task="j2"), record(PACKED, task="j3")])
    assert [line["task"] for line in lines(tmp_path)] == ["j1", "j2", "j3"]
    assert len(names(tmp_path)) == 2


async def test_a_line_that_a_crash_has_cut_is_written_again(store: ArtifactStore, tmp_path: Path) -> None:
    both = [record(task="j1"), record(task="j2", name="größe")]
    await kept(store, *both)
    whole = (tmp_path / "index.jsonl").read_bytes()
    for left in (whole.index(b"\n") + 1, whole.index(b"gr\xc3") + 3, len(whole) - 2, len(whole) - 1):
        (tmp_path / "index.jsonl").write_bytes(whole[:left])
        await ArtifactStore(tmp_path).repair(both)
        assert (tmp_path / "index.jsonl").read_bytes() == whole


async def test_lines_that_others_have_written_are_left_alone(store: ArtifactStore, tmp_path: Path) -> None:
    await kept(store, record(task="j1"))
    foreign = b"# mine\n\xff\xfe\n[1, 2]\n"
    with (tmp_path / "index.jsonl").open("ab") as file:
        file.write(foreign)
    again = ArtifactStore(tmp_path)
    await again.repair([record(task="j1"), record(task="j2")])
    text = (tmp_path / "index.jsonl").read_bytes()
    assert text.count(b"\n") == 5
    await removed(again, [sha256(PLAIN)], time.time() + 1)
    assert (tmp_path / "index.jsonl").read_bytes() == foreign


# Looking


async def test_an_artifact_is_found_by_the_beginning_of_its_id(store: ArtifactStore) -> None:
    await kept(store)
    await kept(store, data=PACKED)
    one = sha256(PLAIN)
    assert store.matching(one[:6]) == store.matching(one) == [one]
    assert one in store.matching(one[:1])
    assert store.matching("") == store.matching("zz") == store.matching("../") == []


async def test_a_damaged_artifact_is_found_out(store: ArtifactStore) -> None:
    await kept(store)
    assert await store.verify(sha256(PLAIN))
    path = store.shelf.place(sha256(PLAIN))
    path.chmod(0o600)
    path.write_bytes(PLAIN[:-1] + b"?")
    assert not await store.verify(sha256(PLAIN))
    path.unlink()
    assert not await store.verify(sha256(PLAIN))
    with pytest.raises(NotFound):
        store.size(sha256(PLAIN))


async def test_a_damaged_artifact_is_healed_under_all_its_names_by_bringing_it_again(
    store: ArtifactStore, tmp_path: Path
) -> None:
    await kept(store, record(task="j1"), record(task="j2", model="mlp"))
    path = store.shelf.place(sha256(PLAIN))
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    path.unlink()
    await store.put(sha256(PLAIN), chunks(PLAIN))
    assert len(names(tmp_path)) == 2
    assert all((tmp_path / name).samefile(store.shelf.place(sha256(PLAIN))) for name in names(tmp_path))


# What nobody needs


async def test_what_is_wanted_or_young_is_no_orphan(store: ArtifactStore) -> None:
    three = [noise(100, seed) for seed in range(3)]
    for data in three:
        await kept(store, data=data)
    old, wanted, young = (sha256(data) for data in three)
    for one in (old, wanted):
        os.utime(store.shelf.place(one), (time.time() - 1000,) * 2)
    now = time.time()
    assert store.orphans({wanted}, now - 900) == {old: 100}
    assert store.orphans({wanted}, now - 1100) == {}
    assert store.orphans({wanted}, now + 1).keys() == {old, young}


async def test_what_is_removed_is_gone_under_all_its_names(store: ArtifactStore, tmp_path: Path) -> None:
    await kept(store, record(task="j1"), record(task="j2", model="mlp"))
    await kept(store, record(PACKED, task="j3"), data=PACKED)
    assert await removed(store, [sha256(PLAIN), sha256(noise(7))], time.time() + 1) == {sha256(PLAIN): len(PLAIN)}
    assert not store.has(sha256(PLAIN))
    assert names(tmp_path) == [f"gbt_realistic/{sha256(PACKED)}/bundle.tar.zst"]
    assert [line["task"] for line in lines(tmp_path)] == ["j3"]
    assert not (tmp_path / "mlp_realistic").exists()
    await kept(store, record(task="j1"))
    assert [line["task"] for line in lines(tmp_path)] == ["j3", "j1"]


async def test_what_somebody_has_come_back_to_meanwhile_is_not_removed(store: ArtifactStore, tmp_path: Path) -> None:
    await kept(store, record())
    os.utime(store.shelf.place(sha256(PLAIN)), (time.time() - 1000,) * 2)
    assert store.orphans(set(), time.time() - 900) != {}
    assert store.touch(sha256(PLAIN))
    assert await removed(store, [sha256(PLAIN)], time.time() - 900) == {}
    assert store.has(sha256(PLAIN))
    assert len(lines(tmp_path)) == 1


async def test_an_upload_that_was_cut_is_not_removed(store: ArtifactStore) -> None:
    await store.put(sha256(PLAIN), chunks(PLAIN[:10]), Span(0, 10, len(PLAIN)))
    assert store.orphans(set(), time.time() + 1) == {}
    await removed(store, [sha256(PLAIN)], time.time() + 1)
    assert store.offset(sha256(PLAIN)) == 10


async def test_what_is_touched_is_touched_after_every_moment_before(store: ArtifactStore) -> None:
    await kept(store)
    for _ in range(100):
        before = time.time()
        assert store.touch(sha256(PLAIN))
        assert await removed(store, [sha256(PLAIN)], before) == {}


async def test_what_is_about_to_be_removed_is_not_here_for_anybody_and_may_be_brought_again(
    store: ArtifactStore, tmp_path: Path
) -> None:
    await kept(store, record())
    async with store.removal([sha256(PLAIN)], time.time() + 1) as going:
        assert going == {sha256(PLAIN): len(PLAIN)}
        assert not store.touch(sha256(PLAIN))
        assert await removed(store, [sha256(PLAIN)], time.time() + 1) == {}, "another removal has it already"
        again = asyncio.create_task(store.put(sha256(PLAIN), chunks(PLAIN)))
        done, _ = await asyncio.wait([again], timeout=0.05)
        assert not done
    assert await again is Taken.NEW
    assert store.shelf.place(sha256(PLAIN)).read_bytes() == PLAIN
    assert names(tmp_path) == []


async def test_a_removal_that_fails_before_its_end_removes_nothing(store: ArtifactStore, tmp_path: Path) -> None:
    await kept(store, record())
    with pytest.raises(ZeroDivisionError):
        async with store.removal([sha256(PLAIN)], time.time() + 1):
            raise ZeroDivisionError
    assert store.touch(sha256(PLAIN))
    assert len(names(tmp_path)) == len(lines(tmp_path)) == 1


async def test_what_is_being_brought_again_is_not_removed_however_long_that_takes(store: ArtifactStore) -> None:
    await kept(store)
    line = Line()
    again = asyncio.create_task(store.put(sha256(PLAIN), aiter(line)))
    line.say(PLAIN)
    await line.taken.wait()
    assert await removed(store, [sha256(PLAIN)], time.time() + 1) == {}
    line.end()
    assert await again is Taken.THERE
    assert await removed(store, [sha256(PLAIN)], time.time() + 1) == {sha256(PLAIN): len(PLAIN)}
