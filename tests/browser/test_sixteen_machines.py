"""A fleet of many machines: what is seen at a glance, found, and asked of the hub while it changes. `make pictures` keeps
what is seen here for the documentation."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser.conftest import PATIENCE_MS, ROOT, SCREENSHOTS, visiting
from tests.browser.sixteen_machines import MACHINES, SixteenMachines
from tests.process_fleet import ProcessFleet

from ostler.client.http import Hub

Visit = Callable[..., Page]
expect.set_options(timeout=PATIENCE_MS)
PICTURES = ROOT / "docs" / "images" if os.environ.get("OSTLER_PICTURES") else SCREENSHOTS


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    fleet = ProcessFleet(tmp_path_factory.mktemp("fleet"))
    fleet.hub_options = ("--gateway-port", "0")
    try:
        fleet.start_hub()
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def client(fleet: ProcessFleet) -> Iterator[Hub]:
    with SixteenMachines(fleet).run() as client:
        yield client


@pytest.fixture
def visit(browser: Browser, fleet: ProcessFleet, client: Hub) -> Iterator[Visit]:
    yield from visiting(browser, fleet.url, fleet.state)


def test_many_machines_are_seen_at_a_glance_and_found_by_what_they_have(visit: Visit) -> None:
    page = visit("#/fleet")
    glance = page.get_by_role("img", name=re.compile(f"{len(MACHINES)} machines, 0 offline"))
    expect(glance).to_be_visible()
    expect(page.get_by_role("article")).to_have_count(len(MACHINES))
    expect(page.get_by_role("article", name="Machine dgx-1")).to_contain_text("1 task")
    keep(page, "fleet")
    page.get_by_label("Find machines").fill("4090 room=lab")
    expect(page.get_by_role("article")).to_have_count(5)
    page.get_by_label("Find machines").fill("no such thing")
    page.get_by_role("button", name="Show all machines").click()
    glance.click(position={"x": 4, "y": 4})
    expect(page.get_by_role("heading", name="dgx-1")).to_be_visible()


def test_only_machines_that_changed_are_asked_for_again(visit: Visit, client: Hub) -> None:
    page = visit("#/fleet")
    page.add_init_script("window.setInterval = () => 0")  # or all of them may be asked for just then
    page.reload()
    idle = page.get_by_role("article", name="Machine sbc-3")
    expect(idle).to_contain_text("idle")
    job = {"command": ["train"], "allowed_hosts": ["sbc-3"], "min_cpu_cores": 1}
    client.submit(job)
    expect(idle).to_contain_text("1 task")  # all are asked for once more when the stream of changes begins
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("/v1/")[2]))
    client.submit(job)
    expect(idle).to_contain_text("2 tasks")
    assert [path for path in asked if path.startswith("workers")] == ["workers?id=sbc-3"]


def test_no_job_is_lost_between_pages_when_newer_ones_come(visit: Visit, client: Hub) -> None:
    job = {"command": ["train"], "name": "paged", "gpu_count": 64}
    first = client.submit([job] * 60)["ids"]
    page = visit("#/jobs?name=paged")
    rows = page.get_by_role("region", name="Jobs").locator("tbody tr")
    page.get_by_role("button", name="Show older ones").click()
    expect(rows).to_have_count(60)
    few = client.submit([job] * 5)["ids"]
    expect(rows).to_have_count(65)
    many = client.submit([job] * 50)["ids"]
    expect(rows).to_have_count(50)  # what is between is on no page that was asked for
    page.get_by_role("button", name="Show older ones").click()
    expect(rows).to_have_count(100)
    page.get_by_role("button", name="Show older ones").click()
    expect(rows).to_have_count(115)
    shown = rows.locator("td:first-child").all_inner_texts()
    assert len(shown) == 115 and set(shown) == {*first, *few, *many}
    for one in shown:
        client.cancel(one)


@pytest.mark.parametrize(("dark", "width"), [(True, 1280), (False, 390)])
def test_the_glance_fits_every_screen(visit: Visit, dark: bool, width: int) -> None:
    page = visit("#/fleet", dark=dark, width=width)
    expect(page.get_by_role("article", name="Machine dgx-1")).to_contain_text("1 task")
    page.screenshot(path=folder(SCREENSHOTS) / f"many-{'dark' if dark else 'light'}-{width}.png")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def keep(page: Page, name: str) -> None:
    page.mouse.move(0, 0)
    page.screenshot(path=folder(PICTURES) / f"{name}.png")


def folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
