"""Secrets on a worker's machine: where they lie, who can get there, and when they are gone."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ostler.wire.messages import JobAssign
from ostler.worker import secrets
from ostler.worker.orders import NotUnderstood, Order, understand
from ostler.worker.secrets import Secrets


def order(attempt: str = "a1", wanted: list[str] | None = None, **given: str) -> Order:
    spec: dict[str, Any] = {"id": "job", "command": ["true"], "secrets": ["s"] if wanted is None else wanted}
    return understand(JobAssign(spec=spec, attempt=attempt, remaining_time=0, secrets=given or {"s": "dmFsdWU="}))


@pytest.fixture
def kept(tmp_path: Path) -> Secrets:
    return Secrets(tmp_path / "worker", tmp_path / "fallback", memory=tmp_path / "no-such")


async def test_each_attempt_has_its_own_and_they_go_with_it(kept: Secrets, tmp_path: Path) -> None:
    first, second = kept.give(order("a1"), None), kept.give(order("a2"), None)
    assert first is not None and second is not None
    assert first.folder == tmp_path / "fallback" / "a1"
    assert (first.folder / "s").read_bytes() == b"value"
    assert stat.S_IMODE(first.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((first.folder / "s").stat().st_mode) == 0o600
    kept.ended("a1")
    assert kept.redactor("a1") is not None, "its log may not be with the hub yet"
    await kept.forget("a1")
    assert kept.redactor("a1") is None
    assert not first.folder.exists()
    assert second.folder.exists()


def test_a_job_that_names_none_has_no_folder(kept: Secrets, tmp_path: Path) -> None:
    assert kept.give(order(wanted=[]), None) is None
    assert not (tmp_path / "fallback").exists()


def test_a_start_that_is_tried_again_writes_them_anew(kept: Secrets) -> None:
    kept.give(order(), None)
    again = kept.give(order(s="b3RoZXI="), None)
    assert again is not None and (again.folder / "s").read_bytes() == b"other"


def test_a_variable_is_what_is_in_it_without_the_last_lines_end(kept: Secrets) -> None:
    found = kept.give(order(wanted=["s:HF_TOKEN"], s="dmFsdWUK"), None)
    assert found is not None
    assert found.environment() == {"OSTLER_SECRETS": str(found.folder), "HF_TOKEN": "value"}


@pytest.mark.parametrize("value", ["/w==", "YQBi"])
def test_what_is_no_text_cannot_be_a_variable(kept: Secrets, value: str) -> None:
    with pytest.raises(LookupError, match="is no text"):
        kept.give(order(wanted=["s:V"], s=value), None)


def test_one_that_the_hub_did_not_send_is_missed(kept: Secrets) -> None:
    with pytest.raises(LookupError, match="the secret 't' is not there any more"):
        kept.give(order(wanted=["s", "t"]), None)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", "."])
def test_a_name_that_would_lead_elsewhere_is_not_understood(name: str) -> None:
    message = JobAssign(spec={"id": "j", "command": ["x"]}, attempt="a", remaining_time=0, secrets={name: "dg=="})
    with pytest.raises(NotUnderstood, match="a name that is none"):
        understand(message)


def test_what_a_killed_worker_left_is_removed_but_for_what_still_runs(kept: Secrets, tmp_path: Path) -> None:
    for attempt in ("gone", "runs"):
        kept.give(order(attempt), None)
    after = Secrets(tmp_path / "worker", tmp_path / "fallback", memory=tmp_path / "no-such")
    after.took_back("runs")
    after.clean({"runs"}.__contains__)
    assert [path.name for path in (tmp_path / "fallback").iterdir()] == ["runs"]
    redactor = after.redactor("runs")
    assert redactor is not None and redactor.covered(b"value!") == b"value!", "shorter than what can be covered"


async def test_two_workers_of_one_name_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    memory = tmp_path / "shm"
    memory.mkdir()
    one, other = (Secrets(tmp_path / name / "w", tmp_path / "x", memory) for name in ("a", "b"))
    given = one.give(order(), None)
    assert given is not None and given.folder.is_relative_to(memory)
    assert stat.S_IMODE(given.folder.parent.stat().st_mode) == 0o711
    other.clean(lambda attempt: False)
    assert given.folder.exists()
    await one.forget("a1")
    assert list(memory.iterdir()) == [], "nothing is left where there is nothing to keep"


def test_a_folder_that_somebody_else_has_put_there_before_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    memory = tmp_path / "shm"
    memory.mkdir()
    Secrets(tmp_path / "w", tmp_path / "fallback", memory).give(order(), None)
    [place] = memory.iterdir()
    shutil.rmtree(place / "a1")
    for spoil in (lambda: place.chmod(0o777), lambda: (place.rmdir(), place.symlink_to(tmp_path))):
        spoil()
        given = Secrets(tmp_path / "w", tmp_path / "fallback", memory).give(order(), None)
        assert given is not None and given.folder.parent == tmp_path / "fallback"
    assert secrets.PREFIX in place.name


def again(tmp_path: Path) -> Secrets:
    """As the next process of the same worker has them."""
    return Secrets(tmp_path / "worker", tmp_path / "fallback", memory=tmp_path / "no-such")


def test_a_worker_that_starts_again_before_the_log_is_with_the_hub_still_covers_it(
    kept: Secrets, tmp_path: Path
) -> None:
    kept.give(order(s="YS1sb25nLXZhbHVl"), None)
    kept.ended("a1")
    after = again(tmp_path)
    after.took_back("a1")
    redactor = after.redactor("a1")
    assert redactor is not None and redactor.covered(b"a-long-value!") == b"************!"


def test_what_a_task_puts_in_the_place_of_its_secrets_is_neither_followed_nor_waited_for(
    kept: Secrets, tmp_path: Path
) -> None:
    given = kept.give(order(s="YS1sb25nLXZhbHVl"), None)
    assert given is not None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("somebody-elses")
    (given.folder / "link").symlink_to(elsewhere)
    os.mkfifo(given.folder / "pipe")
    with (given.folder / "endless").open("wb") as file:
        file.truncate(1 << 40)
    (given.folder / "folder").mkdir()
    after = again(tmp_path)
    after.took_back("a1")
    redactor = after.redactor("a1")
    assert redactor is not None
    assert redactor.covered(b"a-long-value somebody-elses") == b"************ somebody-elses"


def make_deep(folder: Path) -> None:
    make = "import os\nfor _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')\n"
    subprocess.run([sys.executable, "-c", make], cwd=folder, check=True)


async def test_folders_deeper_than_python_can_go_are_gone_with_the_secrets(kept: Secrets) -> None:
    given = kept.give(order(), None)
    assert given is not None
    make_deep(given.folder)
    await kept.forget("a1")
    assert not given.folder.exists()
