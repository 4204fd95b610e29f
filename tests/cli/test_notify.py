"""Somebody is told what became of a job: by a webhook, by ntfy, by the operator's command; and only where the hub may go."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.process_fleet import TWO_A100, ProcessFleet

from ostler.client.errors import BadInput
from ostler.client.http import Hub

Document = dict[str, Any]


class Receiver:
    """Takes what is posted; refuses as often as it is told to."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Document]] = []
        self.refuse = 0
        self.tries = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.tries += 1
                if outer.tries <= outer.refuse:
                    self.send_response(503)
                elif self.path == "/elsewhere":
                    self.send_response(307)
                    self.send_header("Location", "/hook")
                else:
                    outer.got.append((self.path, json.loads(body)))
                    self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, job_id: str) -> list[Document]:
        return [one for _, one in self.got if one.get("job", {}).get("id") == job_id]


def until(holds: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{timeout_s:g} s are over before {what}"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.server.shutdown()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[ProcessFleet]:
    fleet = ProcessFleet(tmp_path_factory.mktemp("notify"))
    fleet.state.mkdir()
    (fleet.state / "ostler.toml").write_text(
        f'[notify]\nntfy = "{receiver.url}"\n'
        f'[notify.targets.team]\nurl = "{receiver.url}/hook"\n'
        f'[notify.targets.mail]\ncommand = ["sh", "-c", "cat > {fleet.folder}/mail; echo \\"$1\\" >> {fleet.folder}/mail", '
        '"sh", "{title}"]\non = ["failed"]\n'
    )
    try:
        fleet.start_hub()
        fleet.start_worker("box", offer=TWO_A100, drain_s=1)
        fleet.await_workers("box")
        yield fleet
    finally:
        fleet.close()


def submit(fleet: ProcessFleet, *command: str, **fields: Any) -> str:
    with client(fleet) as hub:
        return str(hub.submit({"command": list(command), **fields})["id"])


def client(fleet: ProcessFleet) -> Hub:
    return Hub(fleet.url, (fleet.state / "admin.token").read_text().strip())


def test_a_target_of_the_hubs_is_told_of_the_end_once(fleet: ProcessFleet, receiver: Receiver) -> None:
    job_id = submit(fleet, "true", name="done", notify=["team"])
    [told] = until(lambda: receiver.of(job_id), "it was told")
    assert (told["event"], told["job"]["state"], told["job"]["exit_code"]) == ("end", "succeeded", 0)
    assert told["text"] == f"job done ({job_id}) succeeded"
    assert told["seq"] > 0


def test_a_failure_is_told_by_the_operators_command(fleet: ProcessFleet) -> None:
    mail = fleet.folder / "mail"
    submit(fleet, "true", name="fine", notify=["mail"])
    job_id = submit(fleet, "sh", "-c", "exit 3", name="unlucky", notify=["mail"])
    until(lambda: mail.exists() and "unlucky failed" in mail.read_text(), "the mail was written")
    assert mail.read_text() == f"job unlucky ({job_id}) failed: exit code 3\njob unlucky failed\n"


def test_a_topic_of_ntfy_is_published_at_the_hubs_server(fleet: ProcessFleet, receiver: Receiver) -> None:
    submit(fleet, "false", name="tell", notify=["ntfy:my-runs"], notify_on=["end"])
    told = until(lambda: [one for path, one in receiver.got if one.get("topic") == "my-runs"], "it was published")
    assert told[0]["title"] == "job tell failed"
    assert told[0]["priority"] == 4


def test_who_answers_that_it_is_busy_is_asked_again(fleet: ProcessFleet, receiver: Receiver) -> None:
    receiver.tries, receiver.refuse = 0, 1
    job_id = submit(fleet, "true", notify=["team"])
    until(lambda: receiver.of(job_id), "it was told after all")
    assert receiver.tries == 2
    receiver.refuse = 0


def test_what_was_not_asked_for_is_not_told(fleet: ProcessFleet, receiver: Receiver) -> None:
    quiet = submit(fleet, "true", notify=["team"], notify_on=["failed"])
    with client(fleet) as hub:
        assert hub.job(quiet, wait=20.0)["state"] == "succeeded"
    later = submit(fleet, "true", notify=["team"])
    until(lambda: receiver.of(later), "a later one was told")
    assert receiver.of(quiet) == []


def test_a_job_cannot_send_the_hub_into_the_house(fleet: ProcessFleet, receiver: Receiver) -> None:
    with pytest.raises(
        BadInput, match=r"notify: 127\.0\.0\.1 is not on the public network, and the hub's \[notify\] does"
    ):
        submit(fleet, "true", notify=[f"{receiver.url}/hook"])


def test_a_name_that_leads_there_is_found_out_when_it_is_looked_up(fleet: ProcessFleet, receiver: Receiver) -> None:
    before = len(receiver.got)
    port = receiver.url.rpartition(":")[2]
    submit(fleet, "true", notify=[f"http://localhost:{port}/hook"])
    until(lambda: counted(fleet, "failed") >= 1, "it was given up")
    assert len(receiver.got) == before


def test_targets_that_the_hub_does_not_have_and_words_that_are_none_are_refused(fleet: ProcessFleet) -> None:
    with pytest.raises(BadInput, match=r"the hub has no target 'nobody' in its ostler\.toml; it has mail, team"):
        submit(fleet, "true", notify=["nobody"])
    wrong = fleet.run("submit", "--notify", "ftp://x", "--notify-on", "lunch", "--", "true")
    assert "--notify (notify): " in wrong.stderr and "--notify-on (notify_on): 'lunch' is not one of" in wrong.stderr


def counted(fleet: ProcessFleet, outcome: str) -> float:
    with client(fleet) as hub:
        text = hub._transport.request("GET", "/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith(f'ostler_notifications_total{{outcome="{outcome}"')]
    return float(lines[0].rpartition(" ")[2])


def test_what_was_not_told_when_the_hub_was_killed_is_told_by_the_next(fleet: ProcessFleet, receiver: Receiver) -> None:
    receiver.tries, receiver.refuse = 0, 10_000
    job_id = submit(fleet, "true", notify=["team"])
    until(lambda: receiver.tries > 0, "it was tried")
    fleet.kill("hub")
    receiver.refuse = 0
    fleet.start_hub()
    [told] = until(lambda: receiver.of(job_id), "the next hub told it")
    assert told["job"]["state"] == "succeeded"


def test_who_gives_way_to_another_is_told_of(fleet: ProcessFleet, receiver: Receiver) -> None:
    first = submit(fleet, "sleep", "600", name="patient", gpu_count=2, preemptible=True, notify=["team"])
    with client(fleet) as hub:
        until(lambda: hub.job(first)["state"] == "running", "it runs")
        second = submit(fleet, "sleep", "600", gpu_count=2, priority=5)
        told = until(lambda: receiver.of(first), "it was told")
        for job_id in (first, second):
            hub.cancel(job_id)
    assert (told[0]["event"], told[0]["job"]["state"]) == ("preempted", "pending")
    assert told[0]["text"] == f"job patient ({first}) gave way and waits again: preempted by {second}"
