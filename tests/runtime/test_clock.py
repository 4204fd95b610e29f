"""Clocks that are set while somebody counts on them."""

import os
import time
from pathlib import Path

import pytest

from ostler.runtime.attempts import Folders
from ostler.runtime.clock import Moment


@pytest.mark.parametrize("set_by_s", [-3600.0, 0.0, 3600.0])
def test_what_was_left_shows_however_the_clock_was_set_meanwhile(
    set_by_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders(str(tmp_path))
    assert folders.make("a")
    log = tmp_path / "a" / "log"
    log.touch(0o600)
    of_the_files = time.time
    monkeypatch.setattr(time, "time", lambda: of_the_files() - set_by_s)  # what it was before it was set
    made_at = Moment()
    monkeypatch.undo()
    assert folders.is_as_new("a", made_at.by_the_files())
    log.write_text("said")
    os.utime(log)
    assert not folders.is_as_new("a", made_at.by_the_files())
