"""Kinds: what makes two jobs alike, and what is kept of them."""

import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.core_fleet import CoreFleet
from tests.core.plain import only_plain

from ostler.core.learning import kinds
from ostler.core.learning.kinds import Kinds, kind_of
from ostler.core.learning.run import Run
from ostler.domain.job import JobSpec, Training


def kind(*command: str, **fields: object) -> int:
    return kind_of(msgspec.convert({"command": list(command) or ["python", "train.py"], **fields}, JobSpec))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "train-1"}, {"name": "train-27"}),
        ({"name": "eval_2024.11.3"}, {"name": "eval_2024.12.4"}),
        ({"name": "run-9f3b2c1d"}, {"name": "run-00aa11bb"}),
        ({"user_id": "ann"}, {"user_id": "bob"}),
        ({"priority": 3, "env": {"SEED": "1"}}, {"priority": 0}),
        ({"min_vram_gb": 10}, {"min_vram_gb": "auto"}),
    ],
)
def test_jobs_that_differ_in_what_does_not_matter_are_of_one_kind(
    one: dict[str, object], other: dict[str, object]
) -> None:
    assert kind(**one) == kind(**other) != 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["python", "train.py", "--lr", "0.1"], ["python", "train.py", "--lr", "0.2"]),
        (["python", "-u", "train.py"], ["python", "-u", "train.py", "--resume"]),
        (["python", "-m", "bench", "1"], ["python", "-m", "bench", "2"]),
        (["sleep", "10"], ["sleep", "20"]),
    ],
)
def test_what_a_program_is_run_with_does_not_make_another_kind(one: list[str], other: list[str]) -> None:
    assert kind(*one) == kind(*other)


def test_another_name_program_script_template_model_or_type_is_another_kind() -> None:
    different = [
        kind(),
        kind(name="train"),
        kind(name="eval"),
        kind("python", "eval.py"),
        kind("bash", "train.py"),
        kind("python", "-m", "train"),
        kind("python", "-c", "print(1)"),
        kind("python", "-c", "print(2)"),
        kind(template="large"),
        kind(type="service"),
        kind(training=msgspec.to_builtins(Training(model="a"))),
        kind(training=msgspec.to_builtins(Training(model="a", mode="lora"))),
        kind(training=msgspec.to_builtins(Training(model="b"))),
    ]
    assert len(set(different)) == len(different)
    assert all(0 < one < 2**63 for one in different)


@only_plain
def test_a_queue_of_equal_jobs_shares_its_kind() -> None:
    core = CoreFleet()
    for number in range(3):
        core.submit(name=f"train-{number}")
    found = {id(job.kind) for job in core.fleet.jobs.values()}
    assert len(found) == 1
    assert sys.getsizeof(next(iter(core.fleet.jobs.values())).kind) > 28  # one that Python does not share by itself


def test_the_kinds_used_longest_ago_are_forgotten_and_the_ledger_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "MAX_KINDS", 5)
    known = Kinds()
    for number in range(1, 9):
        known.learn(number, "ann", Run(10.0, "succeeded"))
    assert [number for number in range(1, 9) if known.of(number)] == [6, 7, 8]
    gone = {record.key for record in known.take_changes() if record.value is None}
    assert gone == {f"{number:016x}" for number in range(1, 6)}
    assert known.take_changes() == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(["ann", "bob"]),
            st.builds(
                Run,
                st.floats(0, 1e6),
                st.sampled_from(["succeeded", "failed", "cut"]),
                limit_s=st.sampled_from([0.0, 3600.0]),
                memory_mib=st.integers(0, 2**20),
                vram_mib=st.integers(0, 2**17),
            ),
        ),
        max_size=30,
    )
)
def test_what_is_kept_is_what_was_known(runs: list[tuple[int, str, Run]]) -> None:
    known = Kinds()
    kept: dict[str, bytes] = {}
    for number, user, run in runs:
        known.learn(number, user, run)
        changes = known.take_changes()
        assert len({record.key for record in changes}) == len(changes)
        kept |= {record.key: record.value for record in changes if record.value is not None}
    again = Kinds()
    again.restore(kept)
    assert again._kinds == known._kinds
    assert list(again._kinds) == sorted(known._kinds, key=lambda key: (known._kinds[key].turn, key))


def test_what_cannot_be_read_any_more_is_learnt_anew() -> None:
    known = Kinds()
    known.learn(7, "ann", Run(10.0, "succeeded"))
    kept = {record.key: record.value or b"" for record in known.take_changes()}
    again = Kinds()
    again.restore({**kept, "all": b'{"runs": "many"}', "user:ann": b"\xc1"})
    assert again.of(7) == known.of(7)
    assert again.of_all() is None


def test_a_kind_is_written_once_for_a_batch_that_ends_many_of_it() -> None:
    core = CoreFleet()
    core.worker("w")
    for number in range(5):
        core.submit(f"j{number}", name="same")
    ids = [f"j{number}" for number in range(5)]
    core.start(*ids)
    for job_id in ids:
        core.end(job_id)
    rows = core.ledger.kept("kind")
    assert set(rows) == {f"{kind('true', name='same'):016x}", "user:ann", "all"}
    assert msgspec.msgpack.decode(rows["all"])["runs"] == 5


def test_a_curve_of_few_runs_is_made_anew_for_each_and_one_of_many_not_and_follows_all_the_same() -> None:
    known = Kinds()
    for _ in range(10):
        before = known.curve(7)
        known.learn(7, "ann", Run(10.0, "succeeded"))
        assert known.curve(7) is not before
    made = set()
    for _ in range(200):
        known.learn(7, "ann", Run(1000.0, "succeeded"))
        made.add(known.curve(7))
    assert 200 / 6 < len(made) < 200 / 2
    found = known.curve(7)
    assert found is not None
    assert found.quantile(0.5) == pytest.approx(1000.0, rel=0.1)
