"""A launch that is like the one before it: no more is said of it than what is not, and what runs is the same."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.tasks import PATH, A, B, Ends, launch
from tests.worker.conftest import eventually

from ostler.runtime.base import Launch
from ostler.runtime.process import ProcessRuntime
from ostler.runtime.spawn import NOT_EXECUTABLE
from ostler.runtime.supervisor import JOURNAL

C = f"c-{os.getpid()}"


class Said:
    """The orders that the supervisor was told."""

    def __init__(self, runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: list[dict[str, Any]] = []
        assert runtime._link is not None
        send = runtime._link.send

        def sent(order: dict[str, Any], **more: Any) -> None:
            self.orders.append(order)
            send(order, **more)

        monkeypatch.setattr(runtime._link, "send", sent)

    def of(self, attempt: str) -> dict[str, Any]:
        return next(order for order in self.orders if order.get("attempt") == attempt)


@pytest.fixture
def said(runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch) -> Said:
    return Said(runtime, monkeypatch)


def one(attempt: str, like: str = "", path: Path | None = None) -> Launch:
    own = {"OSTLER_ATTEMPT": attempt, "WHO": attempt}
    script = f"echo $WHO $SHARED >>{path}"
    env = {"PATH": PATH, "SHARED": "by all", **own}
    return launch(attempt, "sh", "-c", script, env=env, like=like, own=own, after=[like] if like else [])


async def test_what_is_left_out_is_as_in_the_one_before(
    runtime: ProcessRuntime, ends: Ends, said: Said, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    for attempt, like in ((A, ""), (B, A), (C, B)):
        await runtime.launch(one(attempt, like, notes))
    assert [(await ends.of(name)).exit_code for name in (A, B, C)] == [0, 0, 0]
    assert notes.read_text().splitlines() == [f"{name} by all" for name in (A, B, C)]
    assert "argv" not in said.of(B) and said.of(B)["env"] == {"OSTLER_ATTEMPT": B, "WHO": B}
    assert said.of(C)["like"] == B


async def test_one_whose_like_was_not_the_last_to_be_told_is_told_whole(
    runtime: ProcessRuntime, ends: Ends, said: Said, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    await runtime.launch(one(A, path=notes))
    await runtime.launch(launch(B, "true"))
    await runtime.launch(one(C, A, notes))
    assert [(await ends.of(name)).exit_code for name in (A, B, C)] == [0, 0, 0]
    assert notes.read_text().splitlines() == [f"{A} by all", f"{C} by all"]
    assert "like" not in said.of(C)


async def test_a_supervisor_that_knows_nothing_of_the_one_before_refuses_it(
    runtime: ProcessRuntime, ends: Ends, tmp_path: Path
) -> None:
    await runtime.launch(launch(B, "true"))
    runtime._last = A  # as if its line had been lost
    await runtime.launch(one(C, A, tmp_path / "notes"))
    end = await ends.of(C)
    assert (end.exit_code, A in end.error) == (NOT_EXECUTABLE, True)
    assert not (tmp_path / "notes").exists()


async def test_a_supervisor_of_an_earlier_version_is_told_all_of_it(
    runtime: ProcessRuntime, ends: Ends, said: Said, tmp_path: Path
) -> None:
    runtime._likens = False
    for attempt, like in ((A, ""), (B, A)):
        await runtime.launch(one(attempt, like, tmp_path / "notes"))
    assert [(await ends.of(name)).exit_code for name in (A, B)] == [0, 0]
    assert ("like" in said.of(B), said.of(B)["argv"][0]) == (False, "sh")
    for name in (A, B):
        await runtime.forget(name)
    assert [order["attempt"] for order in said.orders if order["do"] == "forget"] == [A, B]


async def test_several_that_are_forgotten_are_told_together(
    runtime: ProcessRuntime, ends: Ends, said: Said, tmp_path: Path
) -> None:
    for name in (A, B):
        await runtime.launch(launch(name, "true"))
        await ends.of(name)
    for name in (A, B):
        await runtime.forget(name)
    journal = tmp_path / "state" / JOURNAL
    await eventually(lambda: f'{{"forget":"{B}"}}' in journal.read_text())
    assert [order["attempts"] for order in said.orders if order["do"] == "forget"] == [[A, B]]


async def test_one_that_is_launched_again_right_after_it_was_forgotten_ends_as_it_had(
    runtime: ProcessRuntime, ends: Ends
) -> None:
    await runtime.launch(launch(A, "sh", "-c", "exit 3"))
    assert (await ends.of(A)).exit_code == 3
    await runtime.forget(A)
    await runtime.launch(launch(A, "sh", "-c", "exit 4"))
    await eventually(lambda: len(ends.seen) == 2)
    assert [(end.attempt, end.exit_code) for end in ends.seen] == [(A, 3), (A, 3)]
