"""Models: loaded, unloaded and talked to from their page."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect
from tests.browser.conftest import PATIENCE_MS

Visit = Callable[..., Page]
expect.set_options(timeout=PATIENCE_MS)


def test_a_model_is_loaded_and_unloaded_from_its_page(visit: Visit) -> None:
    page = visit("#/models")
    row = page.get_by_role("region", name="Models").get_by_role("row").filter(has_text="mare")
    talk = page.get_by_label("Model", exact=True)
    expect(talk).to_have_value("pony")
    row.get_by_role("button", name="Load").click()
    page.get_by_role("dialog").get_by_role("button", name="Load").click()
    expect(row).to_contain_text("ready")
    expect(talk).to_have_value("pony")
    expect(row.get_by_role("link", name="box")).to_be_visible()
    row.get_by_role("button", name="Unload").click()
    page.get_by_role("dialog").get_by_role("button", name="Unload").click()
    expect(row).to_contain_text("stopped")
    expect(row).to_contain_text(re.compile(r"[1-9]\d* / [1-9]\d*"))


def test_a_model_that_cannot_be_pinned_says_why(visit: Visit) -> None:
    page = visit("#/models")
    page.route("**/v1/models/*/pin", lambda route: route.fulfill(status=422, json={"detail": "there is no room"}))
    page.get_by_role("button", name="Pin").first.click()
    expect(page.get_by_role("alert")).to_have_text("there is no room")


def test_a_model_answers_word_by_word_and_is_stopped(visit: Visit) -> None:
    page = visit("#/models")
    page.get_by_role("button", name="Talk to pony").click()
    talk = page.get_by_role("region", name="Talk to a model")
    expect(talk.get_by_label("Model")).to_have_value("pony")
    talk.get_by_label("What to say").fill("Tell me about the horses")
    talk.get_by_role("button", name="Send").click()
    answer = talk.locator(".said.assistant")
    expect(answer).to_contain_text("tokens/s")
    expect(talk.get_by_role("button", name="Stop")).to_be_visible()  # it goes on speaking
    talk.get_by_role("button", name="Stop").click()
    expect(talk.get_by_role("button", name="Send")).to_be_visible()
    expect(answer).to_contain_text("first word after")
    expect(talk.get_by_role("alert")).to_have_count(0)
    requests = page.get_by_role("region", name="Last requests")
    expect(requests.get_by_role("row").nth(1)).to_contain_text("pony")
