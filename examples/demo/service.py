"""A service: the third kind of work. The hub keeps the service up and passes calls on to it on any machine."""

from examples.demo.board import Row
from examples.demo.expectations import Expectation
from examples.demo.fleet import EXAMPLES
from examples.demo.progress import Document, Progress

NAME = "clock"
PAGE = "/time"


class Service:
    """Submits examples/service.py, fetches a page through the hub, and stops the service."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._job_id = ""
        self._page: Document = {}

    def submit(self) -> None:
        folder = ["--snapshot", str(EXAMPLES)]
        program = ["python", "service.py", "{port}"]
        arguments = ["submit", *folder, "--service", "--name", NAME, "--where", "zone = basement", "--", *program]
        self._job_id = self._progress.run_command(*arguments).strip()
        self._progress.say(f"submitted the service '{NAME}' with the folder examples")

    def fetch_page(self) -> None:
        """Calls the service until it answers; the first calls may come while it starts."""
        url = f"{self._progress.fleet.hub_url}/services/{NAME}{PAGE}"

        def is_answered() -> bool:
            self._page = self._progress.fetch(url)
            return "path" in self._page or bool(self._progress.job(self._job_id)["finished_at"])

        self._progress.wait_until(is_answered, f"an answer of the service '{NAME}' through the hub")
        self._progress.say(f"the service answered through the hub: a page for {self._page.get('path')}")

    def stop(self) -> None:
        self._progress.run_command("cancel", NAME)
        self._progress.wait_until(lambda: self._progress.have_ended([self._job_id]), "the service to stop")

    def compare(self) -> list[Row]:
        path = self._page.get("path")
        problem = "" if path == PAGE and "time" in self._page else f"the answer is {self._page}"
        return [
            Row(NAME, f"a page through HUB/services/{NAME}{PAGE}", f"a page for {path}", problem),
            Expectation(self._job_id, "runs until it is cancelled", "cancelled", check=check_one_start).compare(
                self._progress.job(self._job_id)
            ),
        ]


def check_one_start(document: Document) -> str:
    attempts = len(document["attempts"])
    return "" if attempts == 1 and document["started_at"] else f"it took {attempts} attempts"
