"""`ostler top` over a real hub: what it shows at two sizes, what its keys do, and a hub that is killed under it.

The screens are left beside the test's other files as SVG: `pytest --basetemp=DIR` says where.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual")

from tests.cli.terminal import Terminal
from tests.process_fleet import TWO_A100, ProcessFleet, process_fleet
from textual.pilot import Pilot
from textual.widgets import DataTable

from ostler.cli.live import rows, seen
from ostler.cli.live.app import Top
from ostler.client.errors import BadInput
from ostler.client.http import Hub
from ostler.client.transport import Patience

SIZES = ((80, 24), (200, 50))
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("top"), "box", offer=TWO_A100, drain_s=1) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def jobs(fleet: ProcessFleet) -> dict[str, str]:
    """One that prints and goes on, and one that nothing here could ever run."""
    prints = "i=0; while :; do i=$((i+1)); echo epoch $i; sleep 0.3; done"
    with client(fleet) as hub:
        given = {
            "prints": {"command": ["sh", "-c", prints], "gpu_count": 1, "min_cpu_cores": 1},
            "too-big": {"command": ["true"], "gpu_count": 9},
        }
        ids = {name: hub.submit({**spec, "name": name})["id"] for name, spec in given.items()}
        deadline = time.monotonic() + PATIENCE_S
        while hub.job(ids["prints"])["state"] != "running":
            assert time.monotonic() < deadline
            time.sleep(0.1)
    return ids


def client(fleet: ProcessFleet, token: str = "") -> Hub:
    secret = token or (fleet.state / "admin.token").read_text().strip()
    return Hub(fleet.url, secret, patience=Patience(tries=1, outage_s=0.0))


@asynccontextmanager
async def watching(
    fleet: ProcessFleet, size: tuple[int, int], token: str = ""
) -> AsyncIterator[tuple[Top, Pilot[None]]]:
    with client(fleet, token) as hub:
        app = Top(hub, every_s=0.1)
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(lambda: "prints" in shown(app), "the jobs are shown")
            yield app, pilot


async def until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"{PATIENCE_S:g} s are over before {what}"
        await asyncio.sleep(0.05)


def shown(app: Top) -> str:
    """The screen as text."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


def keep(app: Top, folder: Path, name: str) -> None:
    (folder / f"{name}-{app.size.width}x{app.size.height}.svg").write_text(app.export_screenshot())


def choose(app: Top, table: str, key: str) -> None:
    found = app.query_one(f"#{table}", DataTable)
    found.focus()
    found.move_cursor(row=found.get_row_index(key))


@pytest.mark.parametrize("size", SIZES)
async def test_it_shows_machines_jobs_and_what_they_hold(
    fleet: ProcessFleet, jobs: dict[str, str], size: tuple[int, int], tmp_path: Path
) -> None:
    async with watching(fleet, size) as (app, _):
        await until(lambda: "no regist" in shown(app) and "q Quit" in shown(app), "all of it is shown")
        keep(app, tmp_path, "main")
        text = shown(app)
        assert len(text.split("\n")) == size[1]
        assert max(len(line) for line in text.splitlines()) <= size[0]
        machine = next(line for line in text.splitlines() if line.strip().startswith("box"))
        assert "▪▫" in machine and "1/4" in machine and "prints (GPU 0)" in machine
        assert "● running" in text and "○ pending" in text
        assert "l Log" in text and "q Quit" in text


def test_what_waits_is_listed_in_the_order_of_the_queue_however_long_that_is(
    fleet: ProcessFleet, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = {"command": ["true"], "gpu_count": 9}
    with client(fleet) as hub:
        late = hub.submit({**asks, "name": "late", "priority": 1})["id"]
        early = hub.submit({**asks, "name": "early", "priority": 90})["id"]
        last = hub.submit({**asks, "name": "last", "priority": 1})["id"]
        try:
            waiting = [job["id"] for job in seen.look(hub, seen.Reasons(hub), False).jobs if job["state"] == "pending"]
            assert [one for one in waiting if one in (early, late, last)] == [early, late, last]
            monkeypatch.setattr(seen, "MOST_LISTED", 1)  # as of a queue that is longer than what is listed
            listed = [job for job in seen.look(hub, seen.Reasons(hub), False).jobs if job["state"] == "pending"]
            assert [job["id"] for job in listed] == [early]
            text = " ".join(cell.plain for cell in rows.job_rows(listed, 200)[early])
            assert "early" in text and "9 GPU" in text and "no registered" in text
        finally:
            for name in (late, early, last):
                hub.cancel(name)


@pytest.mark.parametrize("size", SIZES)
async def test_a_jobs_log_is_opened_and_goes_on(
    fleet: ProcessFleet, jobs: dict[str, str], size: tuple[int, int], tmp_path: Path
) -> None:
    async with watching(fleet, size) as (app, pilot):
        choose(app, "jobs", jobs["prints"])
        await pilot.press("enter")
        await until(lambda: "epoch" in shown(app), "the log is shown")
        before = shown(app)
        await until(lambda: shown(app) != before, "the log goes on")
        keep(app, tmp_path, "log")
        await pilot.press("escape")
        await until(lambda: "machine" in shown(app), "the machines are shown again")


async def test_why_and_the_keys_are_told_and_a_filter_leaves_what_has_its_words(
    fleet: ProcessFleet, jobs: dict[str, str], tmp_path: Path
) -> None:
    async with watching(fleet, SIZES[0]) as (app, pilot):
        choose(app, "jobs", jobs["too-big"])
        await pilot.press("w")
        await until(lambda: "needs 9 GPUs" in shown(app), "why is told")
        keep(app, tmp_path, "why")
        await pilot.press("escape", "question_mark")
        await until(lambda: "requeue a job" in shown(app), "the keys are told")
        keep(app, tmp_path, "keys")
        await pilot.press("escape", "slash", *"pend", "enter")
        table = app.query_one("#jobs", DataTable)
        await until(lambda: [key.value for key in table.rows] == [jobs["too-big"]], "only what waits is shown")
        await pilot.press("escape")
        await until(lambda: len(table.rows) >= 2, "all is shown again")


async def test_jobs_are_cancelled_and_requeued_after_a_question(fleet: ProcessFleet, jobs: dict[str, str]) -> None:
    with client(fleet) as hub:
        job = hub.submit({"command": ["sleep", "600"], "name": "victim", "gpu_count": 9})["id"]
        async with watching(fleet, SIZES[0]) as (app, pilot):
            await until(lambda: "victim" in shown(app), "it is listed")
            choose(app, "jobs", job)
            await pilot.press("c")
            await until(lambda: "Cancel victim" in shown(app), "it is asked")
            await pilot.press("n")
            assert hub.job(job)["state"] == "pending"
            await pilot.press("c", "y")
            await until(lambda: hub.job(job)["state"] == "cancelled", "it is cancelled")
            await pilot.press("a")
            await until(lambda: "– cancelled" in shown(app), "what has ended is shown, too")
            choose(app, "jobs", job)
            await pilot.press("r", "y")
            await until(lambda: hub.job(job)["state"] == "pending", "it waits again")
            hub.cancel(job)


async def test_a_machine_is_drained_and_opened_again(fleet: ProcessFleet, jobs: dict[str, str]) -> None:
    with client(fleet) as hub:
        async with watching(fleet, SIZES[0]) as (app, pilot):
            choose(app, "machines", "box")
            await pilot.press("d", "y")
            await until(lambda: hub.worker("box")["draining"], "it is drained")
            await until(lambda: "◐ draining" in shown(app), "that is shown")
            await pilot.press("d", "y")
            await until(lambda: not hub.worker("box")["draining"], "it is open again")


async def test_what_a_viewer_may_not_do_is_said_and_the_view_goes_on(fleet: ProcessFleet, jobs: dict[str, str]) -> None:
    with client(fleet) as hub:
        token = hub.create_token("viewer", "vera")["token"]
    async with watching(fleet, SIZES[0], token) as (app, pilot):
        choose(app, "machines", "box")
        await pilot.press("d", "y")
        await until(lambda: "viewer may not" in " ".join(shown(app).split()), "it is refused in words")


async def test_what_the_hub_refuses_is_shown_as_it_is_written(fleet: ProcessFleet, jobs: dict[str, str]) -> None:
    def refuse() -> dict[str, Any]:
        raise BadInput("no [/red] [b]worker[/b]")

    async with watching(fleet, SIZES[0]) as (app, _):
        app._do(refuse, lambda found: None)
        await until(lambda: "no [/red] [b]worker[/b]" in shown(app), "it is shown")


async def test_an_array_of_which_some_run_is_shown_once_and_as_running(
    fleet: ProcessFleet, jobs: dict[str, str]
) -> None:
    with client(fleet) as hub:
        array = hub.submit({"command": ["sleep", "600"], "name": "many", "array": 60, "min_cpu_cores": 0.5})["id"]
        try:
            async with watching(fleet, SIZES[1]) as (app, _):
                await until(lambda: hub.job(array)["state"] == "running", "some of it run")

                def rows() -> list[str]:
                    return [line for line in shown(app).splitlines() if "many" in line and "×" not in line]

                await until(lambda: any("● running 0/60" in row for row in rows()), "that is shown")
                assert len(rows()) == 1
        finally:
            hub.cancel(array)


async def test_enter_on_a_machine_shows_what_runs_there_and_nothing_that_only_names_it(
    fleet: ProcessFleet, jobs: dict[str, str]
) -> None:
    with client(fleet) as hub:
        named = hub.submit({"command": ["true"], "name": "for-box", "gpu_count": 9})["id"]
        try:
            async with watching(fleet, SIZES[1]) as (app, pilot):
                await until(lambda: "for-box" in shown(app), "it is listed")
                choose(app, "machines", "box")
                await pilot.press("enter")
                await until(lambda: "for-box" not in shown(app), "only what runs there is")
                assert "prints" in shown(app) and "/on:box" in shown(app)
        finally:
            hub.cancel(named)


async def test_that_a_token_opens_nothing_any_more_is_told_in_the_hubs_words(
    fleet: ProcessFleet, jobs: dict[str, str]
) -> None:
    with client(fleet) as hub:
        made = hub.create_token("viewer", "vera")
        async with watching(fleet, SIZES[0], made["token"]) as (app, _):
            hub.revoke_token(made["id"])
            await until(lambda: "refused for" in shown(app) and "token" in shown(app), "it is told why")
            assert "no hub for" not in shown(app)


async def test_a_hub_that_is_killed_is_told_and_comes_back_by_itself(
    fleet: ProcessFleet, jobs: dict[str, str], tmp_path: Path
) -> None:
    async with watching(fleet, SIZES[0]) as (app, _):
        await asyncio.to_thread(fleet.kill, "hub")
        await until(lambda: "no hub for" in shown(app), "it is told that the hub is away")
        assert "prints" in shown(app)
        keep(app, tmp_path, "away")
        await asyncio.to_thread(fleet.start_hub)
        await until(lambda: "no hub for" not in shown(app), "it is back")
        with client(fleet) as hub:
            hub.submit({"command": ["true"], "name": "afterwards", "gpu_count": 9})
        await until(lambda: "afterwards" in shown(app), "what happened since is shown")


def test_in_a_real_terminal_it_comes_and_goes(fleet: ProcessFleet, jobs: dict[str, str]) -> None:
    terminal = Terminal(fleet, "top", rows=24, columns=80)
    terminal.until("prints")
    terminal.type("?")
    terminal.until("requeue a job")
    terminal.type("\x1b")
    time.sleep(0.5)  # an escape is known for one by what does not follow it
    terminal.type("q")
    assert terminal.exit_code() == 0


def test_without_textual_it_says_what_to_install(fleet: ProcessFleet) -> None:
    code = "import sys; sys.modules['textual'] = None; from ostler.cli.main import run; sys.exit(run(['top']))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **fleet.environment}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == "ostler: ostler top needs the library textual; install it into Ostler's environment: pip install textual\n"
    )


def test_without_a_terminal_it_names_what_needs_none(fleet: ProcessFleet) -> None:
    done = fleet.run("top")
    told = "ostler: ostler top needs a terminal; `ostler status` prints the same, once\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
