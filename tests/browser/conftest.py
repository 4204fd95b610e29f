"""A real Chromium before a real hub with a real worker. Where one of them is missing, the tests say so and are skipped."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright
from tests.ports import free_port
from tests.process_fleet import TWO_A100, ProcessFleet

import ostler

STATIC = Path(ostler.__file__).parent / "dashboard" / "static" / "index.html"
ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "out" / "screenshots"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 20_000
TINY = ROOT / "examples" / "models" / "tiny_server.py"
MODELS = f"""
[gateway]
scheduler = "fifo"

[models.pony]
cmd = ["{sys.executable}", "{TINY}", "--port", "${{PORT}}", "--name", "pony", "--order", "1", "--tokens-per-second", "10"]
filters = {{ set = {{ max_tokens = 400 }} }}   # it goes on until it is stopped

[models.mare]
cmd = ["{sys.executable}", "{TINY}", "--port", "${{PORT}}", "--name", "mare", "--order", "2"]
"""

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one file's tests: while it is open, its own event loop runs in this thread, and asyncio tests cannot."""
    if CHROMIUM is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    if not STATIC.exists():
        pytest.skip("the dashboard is not built: make dashboard (Node 18 or newer)")
    with sync_playwright() as playwright:
        # A container's root has no namespaces to spare for the browser's own sandbox.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class FleetWithModels(ProcessFleet):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gateway_port = free_port()
        self.hub_options = ("--gateway-port", str(self.gateway_port))
        self.state.mkdir(parents=True)
        (self.state / "ostler.toml").write_text(MODELS)


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    """One for all files: whoever leaves a job running there says so."""
    fleet = FleetWithModels(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.start_hub()
        fleet.start_worker("box", offer=TWO_A100, drain_s=1)
        fleet.await_workers("box")
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def visit(browser: Browser, fleet: ProcessFleet) -> Iterator[Visit]:
    """Opens a page, logged in as the operator, in a browser of its own; any error in it fails the test."""
    yield from visiting(browser, fleet.url, fleet.state)


def visiting(browser: Browser, url: str, state: Path) -> Iterator[Visit]:
    wrong: list[str] = []
    contexts = []

    def heard(message: ConsoleMessage) -> None:
        # Before the login there is no session, a hub that was killed does not answer, and a mistake is told as one.
        is_meant = any(told in message.text for told in ("401", "422", "net::ERR"))
        if message.type == "error" and not is_meant:
            wrong.append(message.text)

    def open_page(address: str = "", *, dark: bool = False, width: int = 1280, log_in: bool = True) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", locale="en-GB"
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", heard)
        page.goto(f"{url}/{address}")
        if log_in:
            page.get_by_label("Token").fill((state / "admin.token").read_text().strip())
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("navigation").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
