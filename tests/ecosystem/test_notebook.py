"""What a notebook shows, asked of a real kernel over its own protocol."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from ostler.client import Fleet, Patience, notebook
from ostler.client.fleet import connect

LONG_S = 60


class Kernel:
    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client

    def run(self, code: str) -> list[dict[str, Any]]:
        """Whatever the cell showed, in order, each with its kind."""
        shown: list[dict[str, Any]] = []

        def hook(message: dict[str, Any]) -> None:
            kind = message["header"]["msg_type"]
            if kind in ("display_data", "update_display_data", "execute_result", "stream", "error"):
                shown.append({"kind": kind, **message["content"]})

        self._client.execute_interactive(code, output_hook=hook, timeout=LONG_S)
        assert not [one for one in shown if one["kind"] == "error"], shown
        return shown

    def html(self, code: str) -> str:
        """How the cell's last value looks."""
        found = [one["data"] for one in self.run(code) if one["kind"] == "execute_result"]
        html: str = found[0]["text/html"]
        return html


@pytest.fixture(scope="module")
def kernel(fleet: Fleet, state: Path) -> Iterator[Kernel]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        kernel = Kernel(client)
        kernel.run(f"import ostler, time, os\nfleet = ostler.connect({fleet.url!r}, state_dir={str(state)!r})")
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def words(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", html)


def test_a_fleet_a_job_and_a_map_are_tables(kernel: Kernel, fleet: Fleet) -> None:
    about = words(kernel.html("fleet"))
    assert fleet.url in about
    assert re.search(r"local-0\s+ready", about)
    job = words(kernel.html("job = fleet.submit(pow, 2, 5, name='<b>power</b>')\njob.result()\njob"))
    assert re.search(r"state\s+succeeded", job)
    assert "&lt;b&gt;power&lt;/b&gt;" in kernel.html("job")
    mapped = kernel.html("values = fleet.map(abs, [-1, -2, -3])\nseen = list(values)\nvalues")
    assert "3 succeeded" in words(mapped)
    assert "&lt;Results of None&gt;" in kernel.html("fleet.map(abs, [])")
    assert "local-0" in words(kernel.html("ostler.AsyncFleet(fleet)"))


def test_a_map_shows_its_progress_in_one_place_that_is_written_over(kernel: Kernel) -> None:
    code = """
def slow(number):
    time.sleep(0.1)
    if number == 7:
        raise ValueError(number)
    return number
values = list(fleet.map(slow, range(12), return_exceptions=True))
"""
    shown = [one for one in kernel.run(code) if "data" in one]
    assert shown[0]["kind"] == "display_data"
    assert {one["kind"] for one in shown[1:]} == {"update_display_data"}
    assert len({one["transient"]["display_id"] for one in shown}) == 1
    assert "12 pending" in shown[0]["data"]["text/plain"]
    assert shown[-1]["data"]["text/plain"].startswith("slow: 11 succeeded, 1 failed")
    assert "11 succeeded, 1 failed" in words(shown[-1]["data"]["text/html"])


def test_a_job_that_is_waited_for_is_watched_and_a_quick_one_is_not(kernel: Kernel) -> None:
    kernel.run("from ostler.client.notebook import Watching\nWatching.AFTER_S = 60.0")
    assert kernel.run("x = fleet.submit(abs, -1).result()") == []
    kernel.run("Watching.AFTER_S = 0.5")
    shown = kernel.run("x = fleet.submit(time.sleep, 2.5, name='long').result()")
    assert shown[0]["kind"] == "display_data"
    assert re.match("long: 1 (pending|assigned|running)", shown[0]["data"]["text/plain"])
    assert "1 succeeded" in shown[-1]["data"]["text/plain"]


def test_nothing_is_drawn_where_that_is_not_wanted(kernel: Kernel) -> None:
    code = "os.environ['OSTLER_PROGRESS'] = '0'\nx = list(fleet.map(abs, [-1]))\ndel os.environ['OSTLER_PROGRESS']"
    assert kernel.run(code) == []


def test_a_hub_that_does_not_answer_is_said_so_beside_the_plain_form(tmp_path: Path) -> None:
    gone = connect("http://127.0.0.1:9", "token", tmp_path, patience=Patience(tries=1))
    assert "&lt;Fleet http://127.0.0.1:9&gt;" in gone._repr_html_()
    assert not notebook.is_here()
