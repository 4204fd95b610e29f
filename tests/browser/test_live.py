"""A page that is left open: what is typed stays, what is shown goes on, and what nobody looks at takes nothing."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Request, expect
from tests.browser.conftest import PATIENCE_MS
from tests.process_fleet import ProcessFleet

from ostler.client.http import Hub

Visit = Callable[..., Page]
expect.set_options(timeout=PATIENCE_MS)

TWO_WORDS = 'echo first; until [ -e "$0" ]; do sleep 0.1; done; echo second; sleep 60'
"""The second one once there is a file."""


@pytest.fixture
def hub(fleet: ProcessFleet) -> Iterator[Hub]:
    with Hub(fleet.url, (fleet.state / "admin.token").read_text().strip()) as client:
        yield client


@pytest.fixture
def waiting(hub: Hub) -> Iterator[Callable[..., list[str]]]:
    """Submits jobs that wait for more GPUs than there are."""
    made: list[str] = []

    def submit(*names: str, priority: int = 0) -> list[str]:
        specs = [{"name": name, "command": ["true"], "gpu_count": 3, "priority": priority} for name in names]
        made.extend(ids := hub.submit(specs)["ids"])
        return ids

    yield submit
    for job in made:
        hub.cancel(job)


def look(page: Page, *, hidden: bool) -> None:
    """As when another tab comes to the front, which a browser without a screen does not tell its pages."""
    page.evaluate(
        """hidden => {
        Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }""",
        hidden,
    )


def test_what_is_typed_stays_while_the_queue_changes_and_is_given_up_with_escape(
    visit: Visit, hub: Hub, waiting: Callable[..., list[str]]
) -> None:
    [job] = waiting("typed", priority=5)
    page = visit("#/queue")
    field = page.get_by_label("Priority of typed")
    field.fill("77")
    waiting("news")
    expect(page.get_by_role("link", name="news")).to_be_visible()
    expect(field).to_have_value("77")
    field.press("Escape")
    expect(field).to_have_value("5")
    field.fill("")
    with page.expect_response("**/v1/queue?*"):
        field.press("Enter")
    expect(field).to_have_value("5")
    assert [place["priority"] for place in hub.queue()["queue"] if place["id"] == job] == [5]


def test_what_is_typed_stays_while_jobs_come_and_becomes_the_filter(
    visit: Visit, waiting: Callable[..., list[str]]
) -> None:
    page = visit("#/jobs")
    field = page.get_by_label("Name", exact=True)
    field.fill("filt")
    [job] = waiting("filtered")
    expect(page.get_by_role("link", name=job)).to_be_visible()
    expect(field).to_have_value("filt")
    field.press("End")
    field.press_sequentially("ered")
    field.press("Enter")
    expect(page).to_have_url(re.compile("name=filtered"))
    expect(field).to_have_value("filtered")


def test_an_older_job_keeps_what_was_heard_of_it(
    visit: Visit, fleet: ProcessFleet, waiting: Callable[..., list[str]]
) -> None:
    job = fleet.submit("--name", "older", "--", "sleep", "60")
    waiting(*(f"newer-{number}" for number in range(55)))
    page = visit("#/jobs")
    page.get_by_role("button", name="Show older ones").click()
    row = page.get_by_role("row").filter(has_text=job)
    expect(row).to_contain_text("running")
    fleet.run("cancel", job)
    expect(row).to_contain_text("cancelled")
    [news] = waiting("news")
    expect(page.get_by_role("link", name=news)).to_be_visible()
    expect(row).to_contain_text("cancelled")
    look(page, hidden=True)
    fleet.run("requeue", job)
    look(page, hidden=False)
    expect(row).to_contain_text("running")
    fleet.run("cancel", job)


def test_how_long_a_job_has_run_goes_on_while_nothing_happens(visit: Visit, fleet: ProcessFleet) -> None:
    job = fleet.submit("--", "sleep", "60")
    page = visit(f"#/job/{job}")
    took = page.locator("dt", has_text="took").locator("xpath=following-sibling::dd[1]")
    expect(page.get_by_role("region", name="What happened")).to_contain_text("running")
    for _ in range(2):
        expect(took).not_to_have_text(took.inner_text())
    fleet.run("cancel", job)


def test_a_long_history_shows_its_end_and_says_that_older_ones_are_left_out(
    visit: Visit, hub: Hub, waiting: Callable[..., list[str]]
) -> None:
    [job] = waiting("again and again")
    for _ in range(100):
        hub.cancel(job)
        hub.requeue(job)
    hub.cancel(job)
    happened = visit(f"#/job/{job}").get_by_role("region", name="What happened")
    expect(happened).to_contain_text("The last 200; older ones are left out here.")
    expect(happened.get_by_role("row")).to_have_count(200)
    expect(happened.get_by_role("row").last).to_contain_text("cancelled")


def test_a_log_goes_on_after_the_hub_was_restarted(visit: Visit, fleet: ProcessFleet) -> None:
    goes_on = fleet.folder / "restarted"
    job = fleet.submit("--", "sh", "-c", TWO_WORDS, str(goes_on))
    page = visit(f"#/job/{job}")
    log = page.get_by_label("Log", exact=True)
    expect(log).to_contain_text("first")
    fleet.terminate("hub")
    # Each part of the page that asks the hub meanwhile has an alert of its own.
    expect(page.get_by_role("alert").filter(has_text="cannot be reached").first).to_be_visible()
    fleet.start_hub()
    goes_on.touch()
    expect(log).to_contain_text("second")
    expect(page.get_by_role("alert")).to_have_count(0)
    fleet.run("cancel", job)


def test_a_page_that_nobody_looks_at_holds_no_connection(visit: Visit, fleet: ProcessFleet) -> None:
    """Three jobs' pages in one browser took all six that it has for a hub."""
    goes_on = fleet.folder / "hidden"
    job = fleet.submit("--", "sh", "-c", TWO_WORDS, str(goes_on))
    page = visit(f"#/job/{job}")
    log = page.get_by_label("Log", exact=True)
    expect(log).to_contain_text("first")
    expect(page.get_by_text("● live")).to_be_visible()

    def ends(of: str) -> Callable[[Request], bool]:
        return lambda request: of in request.url

    with (
        page.expect_event("requestfailed", ends("follow=true")),
        page.expect_event("requestfailed", ends("/v1/events")),
    ):
        look(page, hidden=True)
    goes_on.touch()
    look(page, hidden=False)
    expect(log).to_contain_text("second")
    expect(page.get_by_text("● live")).to_be_visible()
    fleet.run("cancel", job)
