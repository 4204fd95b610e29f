"""`ostler reload` against a hub of another version."""

from contextlib import nullcontext
from typing import Any

import pytest

from ostler.cli import manifest
from ostler.cli.options import Access


class OlderHub:
    """A hub that knows no plan of a reload: it applies its manifest at once."""

    def __init__(self) -> None:
        self.reloads = 0

    def reload_manifest(self, **_: Any) -> dict[str, Any]:
        self.reloads += 1
        return {"inserted": 1, "unchanged": 0, "updated": 0, "absent": 0, "jobs": []}


def test_a_reload_by_an_older_hub_reports_an_apply_without_a_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = OlderHub()
    monkeypatch.setattr(manifest, "connect", lambda access: nullcontext(hub))
    assert manifest.reload(Access()) == 0
    shown = capsys.readouterr()
    assert shown.err == "note: the hub is older than this command and has applied the manifest without a check\n"
    assert shown.out.startswith("1 inserted, ")
    assert hub.reloads == 1
