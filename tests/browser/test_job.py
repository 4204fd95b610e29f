"""A job's page: what it takes and tells, what it leaves, its tasks, and another one made from it."""

import json
import re
import sys
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import PATIENCE_MS
from tests.process_fleet import ProcessFleet

Visit = Callable[..., Page]
expect.set_options(timeout=PATIENCE_MS)

TRAINING = """
import json, time
kept = bytearray(64 << 20)
for epoch in range(600):
    print(json.dumps({"epoch": epoch, "loss": 1 / (epoch + 1)}), flush=True)
    time.sleep(0.5)
"""


@pytest.fixture(scope="module")
def training(fleet: ProcessFleet) -> str:
    """Begun before it is looked at: a worker tells what its tasks take every ten seconds."""
    return fleet.submit("--name", "training", "--", sys.executable, "-c", TRAINING)


def test_another_job_is_made_from_one_and_mistakes_stand_at_their_fields(
    visit: Visit, fleet: ProcessFleet, training: str
) -> None:
    page = visit(f"#/job/{training}")
    page.get_by_role("link", name="Clone").click()
    expect(page.get_by_label("Command")).to_have_value(re.compile(r"-c\n\"\\nimport json"))
    page.get_by_label("Name").fill("cloned")
    page.get_by_label("GPUs").fill("-1")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_label("GPUs")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("GPUs")).to_be_focused()
    spec = page.get_by_label("The whole spec")
    written = json.loads(spec.input_value())
    assert (written["name"], written["gpu_count"]) == ("cloned", -1)
    spec.fill(json.dumps({**written, "gpu_count": 0, "command": ["true"]}))
    expect(page.get_by_label("GPUs")).to_have_value("0")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="cloned")).to_be_visible()
    expect(page.locator(".head").first).to_contain_text("succeeded")
    [made] = [job for job in fleet.json("jobs")["jobs"] if job["name"] == "cloned"]
    assert made["spec"]["command"] == ["true"]


def test_what_is_no_json_is_not_sent(visit: Visit) -> None:
    page = visit("#/submit")
    page.get_by_label("The whole spec").fill('{"command": ')
    expect(page.get_by_text("This is not JSON yet")).to_be_visible()
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()


def test_what_is_typed_key_by_key_stays_as_it_was_typed(visit: Visit) -> None:
    page = visit("#/submit")
    page.get_by_label("Cores").press_sequentially("0.5")
    page.get_by_label("Command").fill("")
    page.get_by_label("Command").press_sequentially('sh\n"a\\nb"')
    expect(page.get_by_label("Cores")).to_have_value("0.5")
    written = json.loads(page.get_by_label("The whole spec").input_value())
    assert written == {"command": ["sh", "a\nb"], "min_cpu_cores": 0.5}


def test_the_form_follows_its_address_from_one_job_to_another(visit: Visit, fleet: ProcessFleet) -> None:
    one, other = (fleet.submit("--name", name, "--wait", "--", "true") for name in ("one", "other"))
    page = visit(f"#/submit?from={one}")
    expect(page.get_by_label("Name")).to_have_value("one")
    page.goto(f"{fleet.url}/#/submit?from={other}")
    expect(page.get_by_label("Name")).to_have_value("other")
    page.goto(f"{fleet.url}/#/submit")
    expect(page.get_by_label("Name")).to_have_value("")
    page.go_back()
    expect(page.get_by_label("Name")).to_have_value("other")


STRANGE = """
import json, os
markup = "<img src=x onerror=document.title=1>" + "x" * 80
with open(os.environ["OSTLER_OUT"] + "/metrics.jsonl", "w") as file:
    for step in range(3):
        told = {"step": 1e20 + step * 16384, "even": 1 + step * 2.3e-16, "huge": (-1.7e308) ** (step % 2), markup: step}
        print(json.dumps(told), file=file)
"""


def test_strange_names_and_numbers_are_drawn_as_they_are_on_a_phone_too(visit: Visit, fleet: ProcessFleet) -> None:
    """Numbers that are told apart by their last digit only once made an axis of endless steps."""
    markup = "<img src=x onerror=document.title=1>" + "x" * 60
    job = fleet.submit("--name", markup, "--wait", "--", sys.executable, "-c", STRANGE)
    page = visit(f"#/job/{job}", width=390)
    expect(page.get_by_role("heading", name=markup)).to_be_visible()
    for name in ("even", "huge", "<img src"):
        expect(page.get_by_role("figure", name=name).locator("canvas")).to_be_visible()
    expect(page.get_by_text("admin", exact=True)).to_be_visible()
    assert page.locator("main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.locator("dl").bounding_box()["height"] < 1500  # type: ignore[index]


def test_an_array_lists_its_tasks_and_each_has_its_page(visit: Visit, fleet: ProcessFleet) -> None:
    job = fleet.submit("--name", "many", "--array", "3", "--wait", "--", "true")
    page = visit(f"#/job/{job}")
    tasks = page.get_by_role("region", name="Tasks")
    expect(tasks.get_by_role("row")).to_have_count(4)
    tasks.get_by_role("link", name=f"{job}.1").click()
    expect(page.get_by_role("region", name="Attempts")).to_contain_text("box")
    happened = page.get_by_role("region", name="What happened").get_by_role("row")
    expect(happened.filter(has_text="succeeded")).to_have_count(1)
    expect(happened.filter(has_not_text=f"{job}.1")).to_have_count(0)


def test_a_reason_of_one_long_word_stays_on_the_screen(visit: Visit, fleet: ProcessFleet) -> None:
    page = visit(f"#/job/{fleet.submit('--', '/no/such/' + 'p' * 400)}", width=390)
    expect(page.locator(".note")).to_contain_text("pppp")
    expect(page.get_by_role("region", name="Attempts")).to_contain_text("pppp")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_what_a_job_leaves_is_drawn_listed_and_fetched(visit: Visit, fleet: ProcessFleet) -> None:
    script = 'for i in 1 2 3; do echo "{\\"step\\": $i, \\"auc\\": 0.$i}"; done > $OSTLER_OUT/metrics.jsonl'
    page = visit(f"#/job/{fleet.submit('--wait', '--', 'sh', '-c', script)}")
    expect(page.get_by_role("figure", name="auc over step")).to_contain_text("0.3")
    row = page.get_by_role("region", name="Artifacts").get_by_role("row").nth(1)
    expect(row).to_contain_text("KiB")
    with page.expect_download() as download:
        row.get_by_role("link", name="Download").click()
    assert b"metrics.jsonl" in download.value.path().read_bytes()


def test_what_a_running_job_takes_and_tells_is_drawn_as_it_comes(
    visit: Visit, fleet: ProcessFleet, training: str
) -> None:
    page = visit(f"#/job/{training}")
    loss = page.get_by_role("figure", name="loss over epoch").get_by_role("img")
    expect(loss).to_be_visible()
    before = loss.get_attribute("aria-label")
    expect(loss).not_to_have_attribute("aria-label", before or "")
    memory = page.get_by_role("figure", name="memory over time")
    expect(memory).to_contain_text(re.compile(r"\d+(\.\d)? MiB"))
    expect(page.get_by_role("figure", name="cores over time")).to_be_visible()
    fleet.run("cancel", training)
