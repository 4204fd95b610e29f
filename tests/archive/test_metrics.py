"""The numbers in a bundle, read where they are."""

import json
from pathlib import Path

import pytest
from tests.archive.test_unpack import FORMS_OF_PACKING, announced, with_size
from tests.worker.archives import archive, entry, folder

from ostler.archive import metrics
from ostler.archive.metrics import MOST_BYTES, metrics_of


def read(place: Path, bundle: bytes) -> dict[str, float]:
    path = place / "bundle"
    path.write_bytes(bundle)
    with path.open("rb") as file:
        return metrics_of(file)


def lines(*documents: object) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in documents)


@pytest.mark.parametrize("packing", FORMS_OF_PACKING)
def test_the_last_value_of_each_number_is_told(tmp_path: Path, packing: str) -> None:
    told = lines(
        {"step": 1, "loss": 0.9, "note": "text"},
        {"step": 2, "loss": 0.5, "done": True},
        {"loss": float("nan"), "f1": 0.75},
        {"loss": float("inf"), "inner": {"x": 1}, "list": [1]},
        [1, 2],
    )
    bundle = archive(
        folder("a"), entry("a/metrics.jsonl", lines({"no": 1})), entry("metrics.jsonl", told + b"not json")
    )
    assert read(tmp_path, FORMS_OF_PACKING[packing](bundle)) == {"step": 2, "loss": 0.5, "f1": 0.75}


@pytest.mark.parametrize("packing", FORMS_OF_PACKING)
def test_what_is_before_it_is_passed_over(tmp_path: Path, packing: str) -> None:
    bundle = archive(entry("a", b"x" * 3_000_001), entry("./metrics.jsonl", lines({"loss": 1})), entry("z", b"1"))
    assert read(tmp_path, FORMS_OF_PACKING[packing](bundle)) == {"loss": 1}


@pytest.mark.parametrize(
    "bundle",
    [
        b"",
        b"no archive",
        announced(b"no archive"),
        archive(entry("a", b"1")),
        archive(folder("metrics.jsonl")),
        archive(entry("a", b"1" * 5000), entry("metrics.jsonl", lines({"loss": 1})))[:2000],
        with_size(2**80),
        archive(entry("metrics.jsonl", b"[" * 100_000)),
        archive(entry("metrics.jsonl", b'{"a": ' * 10_000)),
        archive(entry("metrics.jsonl", b'{"a": 1' + b"0" * 10_000 + b"}")),
        archive(entry("metrics.jsonl", b"\xff\xfe\n{}\n\n")),
    ],
)
def test_a_bundle_that_tells_nothing_has_no_metrics(tmp_path: Path, bundle: bytes) -> None:
    assert read(tmp_path, bundle) == {}


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    told = lines({"early": 1}) + b" " * MOST_BYTES + b"\n" + lines({"late": 2})
    assert read(tmp_path, archive(entry("metrics.jsonl", told))) == {"late": 2}


def test_only_so_many_names_and_no_long_ones_are_told(tmp_path: Path) -> None:
    told = lines({"n" * 129: 1}, {"\ud800": 1}, {"a\nb": 1}, *({f"m{n}": n} for n in range(100)), {"m3": -1})
    found = read(tmp_path, archive(entry("metrics.jsonl", told)))
    assert list(found) == [f"m{n}" for n in range(64)]
    assert found["m3"] == -1


def test_a_compressed_bundle_is_not_searched_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PASSED_BYTES", 100_000)
    file, large = entry("metrics.jsonl", lines({"loss": 1})), entry("a", b"0" * 200_000)
    assert read(tmp_path, announced(archive(large, file))) == {}
    assert read(tmp_path, announced(archive(file, large))) == {"loss": 1}
    assert read(tmp_path, archive(large, file)) == {"loss": 1}
