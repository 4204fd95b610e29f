"""What a person sees and does in the dashboard: each page, its live update, each action."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import PATIENCE_MS, ROOT, SCREENSHOTS
from tests.process_fleet import ProcessFleet

Visit = Callable[..., Page]
expect.set_options(timeout=PATIENCE_MS)

PAGES = ("fleet", "timeline", "queue", "jobs", "training", "models", "whatif", "submit", "audit", "tokens")
AXE = ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"


def test_a_wrong_token_is_refused_and_the_right_one_opens_the_fleet(visit: Visit, fleet: ProcessFleet) -> None:
    page = visit(log_in=False)
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("ostler token create")
    page.get_by_label("Token").fill((fleet.state / "admin.token").read_text().strip())
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("article", name="Machine box")).to_contain_text("ready")
    page.reload()
    expect(page.get_by_role("article", name="Machine box")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_the_fleet_shows_what_holds_a_device_as_soon_as_it_does(visit: Visit, fleet: ProcessFleet) -> None:
    page = visit("#/fleet")
    device = page.get_by_role("img", name="GPU 0, A100")
    expect(device).to_have_attribute("aria-label", re.compile("80 GiB free"))
    job = fleet.submit("--gpus", "1", "--", "sleep", "60")
    expect(device).to_have_attribute("aria-label", re.compile("held whole"))
    expect(device.locator("title")).to_have_text(job)
    fleet.run("cancel", job)
    expect(device).to_have_attribute("aria-label", re.compile("80 GiB free"))


def test_a_machine_is_drained_and_resumed_from_its_page(visit: Visit, fleet: ProcessFleet) -> None:
    page = visit("#/machine/box")
    page.get_by_role("button", name="Drain").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(page.get_by_text("draining")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Drain")).to_be_visible()
    assert not fleet.json("workers")["workers"][0]["draining"]


def test_jobs_are_listed_live_and_a_filter_is_part_of_the_address(visit: Visit, fleet: ProcessFleet) -> None:
    page = visit("#/jobs?state=failed")
    good = fleet.submit("--name", "well", "--wait", "--", "true")
    bad = fleet.submit("--name", "badly", "--", "false")
    expect(page.get_by_role("link", name=bad)).to_be_visible()
    expect(page.get_by_role("link", name=good)).to_have_count(0)
    page.get_by_label("State").select_option("succeeded")
    expect(page.get_by_role("link", name=good)).to_be_visible()
    assert "state=succeeded" in page.url


def test_a_log_is_followed_in_colour_and_searched(visit: Visit, fleet: ProcessFleet) -> None:
    script = r"printf '\033[32mgreen\033[0m plain\n10 %%\r20 %%\r30 %%'; i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); sleep 0.1; done"
    job = fleet.submit("--", "sh", "-c", script)
    page = visit(f"#/job/{job}")
    log = page.get_by_label("Log", exact=True)
    expect(log.locator("span.a-32")).to_have_text("green")
    expect(log).to_contain_text("line 12")
    page.get_by_label("Find in the log").fill("line 1")
    expect(log.locator("mark").first).to_have_text("line 1")
    expect(log).not_to_contain_text("green")
    fleet.run("cancel", job)


def test_a_job_is_cancelled_and_run_again_from_its_page(visit: Visit, fleet: ProcessFleet) -> None:
    job = fleet.submit("--name", "long", "--", "sleep", "60")
    page = visit(f"#/job/{job}")
    heading = page.locator(".head").first
    expect(heading).to_contain_text("running")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(heading).to_contain_text("cancelled")
    page.get_by_role("button", name="Requeue").click()
    page.get_by_role("dialog").get_by_role("button", name="Requeue").click()
    expect(heading).to_contain_text("running")
    fleet.run("cancel", job)


def test_a_waiting_job_says_why_and_what_would_start_it(visit: Visit, fleet: ProcessFleet) -> None:
    job = fleet.submit("--gpus", "3", "--", "true")
    page = visit(f"#/job/{job}")
    expect(page.get_by_text("needs 3 GPUs").first).to_be_visible()
    expect(page.get_by_text("ask for 2 GPUs instead of 3")).to_be_visible()
    expect(page.get_by_text("Begins never, as things are")).to_be_visible()
    fleet.run("cancel", job)


def test_the_queue_is_reordered_from_its_page(visit: Visit, fleet: ProcessFleet) -> None:
    first, second = (fleet.submit("--name", name, "--gpus", "3", "--", "true") for name in ("one", "two"))
    page = visit("#/queue")
    rows = page.get_by_role("region", name="Queue").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("one")
    page.get_by_label("Priority of two").fill("5")
    page.get_by_label("Priority of two").press("Enter")
    expect(rows.nth(1)).to_contain_text("two")
    rows.nth(1).get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(rows).to_have_count(2)
    assert fleet.json("show", second)["state"] == "cancelled"
    fleet.run("cancel", first)


def test_the_timeline_draws_what_ran_and_runs(visit: Visit, fleet: ProcessFleet) -> None:
    job = fleet.submit("--name", "drawn", "--gpus", "1", "--", "sleep", "60")
    page = visit("#/timeline?span=900")
    block = page.locator("rect.block.running").filter(has=page.locator("title", has_text="drawn"))
    expect(block).to_have_count(1)
    fleet.run("cancel", job)
    gone = page.locator("rect.block.gone").filter(has=page.locator("title", has_text="drawn"))
    expect(gone).to_have_count(1)
    expect(page.get_by_role("region", name="Where the time went")).to_contain_text("box")
    gone.click()
    expect(page.get_by_role("heading", name="drawn")).to_be_visible()


def test_what_if_is_asked_from_the_page(visit: Visit) -> None:
    page = visit("#/whatif")
    page.get_by_label("GPUs").fill("4")
    page.get_by_label("like").fill("box")
    page.get_by_role("button", name="What would happen?").click()
    expect(page.get_by_role("heading", name="What would happen")).to_be_visible()
    expect(page.locator("dl")).to_contain_text("no other job")
    page.get_by_role("link", name="Queue").click()
    expect(page.get_by_role("heading", name="Queue")).to_be_visible()
    expect(page.get_by_role("button", name="What would happen?")).to_have_count(0)


def test_a_token_is_made_shown_once_and_revoked(visit: Visit, fleet: ProcessFleet) -> None:
    page = visit("#/tokens")
    page.get_by_label("Role").select_option("viewer")
    page.get_by_label("User").fill("visitor")
    page.get_by_role("button", name="Make it").click()
    expect(page.get_by_text("it is shown only once")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="visitor")
    expect(row).to_contain_text("viewer")
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_have_count(0)
    assert not [token for token in fleet.json("token", "list")["tokens"] if token["user"] == "visitor"]


SWEEP = """
[defaults]
command = ["sh", "-c", "echo '{{\\"auc\\": {auc}}}' > {out}/metrics.jsonl"]

[[sweeps]]
name = "mlp-{auc}"
model = "mlp"
mode = "quick"
metric = "auc"
goal = "max"
grid = { auc = [0.5, 0.75, 0.875] }
"""


def test_a_sweep_is_drawn_with_its_best_run(visit: Visit, fleet: ProcessFleet) -> None:
    file = fleet.folder / "sweep.toml"
    file.write_text(SWEEP)
    done = fleet.run("apply", str(file))
    assert done.returncode == 0, done.stderr
    page = visit("#/training")
    page.get_by_role("link", name="mlp-{auc}").click()
    expect(page.locator("circle")).to_have_count(3)
    expect(page.locator("circle.best title")).to_contain_text("auc=0.875")
    expect(page.locator("path.best")).to_have_count(1)
    runs = page.get_by_role("region", name="Runs").get_by_role("row")
    expect(runs.nth(1)).to_contain_text("0.875")
    expect(runs.nth(3)).to_contain_text("0.5")
    page.get_by_role("button", name="All training").click()
    matrix = page.get_by_role("region", name="Models and modes")
    expect(matrix.get_by_role("row").filter(has_text="mlp")).to_contain_text("succeeded")
    page.get_by_label("across").select_option("machines")
    expect(matrix.get_by_role("columnheader", name="box")).to_be_visible()
    expect(matrix.get_by_role("row").filter(has_text="mlp, quick")).to_contain_text("succeeded")


def test_the_audit_tells_who_did_what(visit: Visit, fleet: ProcessFleet) -> None:
    job = fleet.submit("--", "true")
    page = visit("#/audit")
    expect(page.get_by_role("row").filter(has_text=job).first).to_contain_text("admin")


def test_the_page_goes_on_after_the_hub_was_killed(visit: Visit, fleet: ProcessFleet) -> None:
    page = visit("#/jobs")
    expect(page.get_by_text("live")).to_be_visible()
    fleet.kill("hub")
    expect(page.get_by_text("reconnecting")).to_be_visible()
    fleet.start_hub()
    expect(page.get_by_text("● live")).to_be_visible()
    job = fleet.submit("--", "true")
    expect(page.get_by_role("link", name=job)).to_be_visible()


def test_a_page_that_was_opened_while_the_hub_starts_goes_on_by_itself(visit: Visit, fleet: ProcessFleet) -> None:
    page = visit(log_in=False)
    page.route("**/v1/session", lambda route: route.abort())
    page.reload()
    expect(page.get_by_role("alert").first).to_contain_text("cannot be reached")
    page.unroute("**/v1/session")
    expect(page.get_by_label("Token")).to_be_visible()


def test_an_address_that_was_cut_amid_an_escape_says_that_nothing_is_there(visit: Visit) -> None:
    page = visit("#/nothing/%E0%A4")
    expect(page.get_by_text("There is no such page")).to_be_visible()


def test_keys_lead_from_page_to_page_and_to_the_search(visit: Visit) -> None:
    page = visit("#/fleet")
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Name", exact=True)).to_be_focused()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_by_everybody(visit: Visit, name: str) -> None:
    """axe-core finds nothing serious, in light and dark, on a desk and on a phone; each look is kept as a picture."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for dark, width in ((False, 1280), (True, 390)):
        page = visit(f"#/{name}", dark=dark, width=width)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.screenshot(path=SCREENSHOTS / f"{name}-{'dark' if dark else 'light'}-{width}.png", full_page=True)
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{name} is {overflow} px wider than a screen of {width}"
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []
