"""The HTTP layer against a real server that follows a script: problems, broken connections, restarts."""

import hashlib
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.client.scripted_hub import ScriptedHub, Step, drop, problem, reply, stall
from tests.ports import free_port

from ostler.client import functions
from ostler.client.errors import (
    BadInput,
    HubFailed,
    HubUnreachable,
    JobCancelled,
    JobFailed,
    NotFound,
    OstlerError,
    WaitTimeout,
)
from ostler.client.http import Hub
from ostler.client.job import Job, wait_for_end
from ostler.client.mapping import Calls, Results
from ostler.client.transport import Patience
from ostler.domain.errors import Conflict, NotAllowed, NotAuthenticated, QuotaExceeded, TooLarge, Unreadable

QUICK = Patience(tries=5, first_pause_s=0.01, growth=1.0, total_s=5.0, outage_s=5.0)


def connect(scripted: ScriptedHub, token: str = "secret") -> Hub:
    return Hub(scripted.url, token, patience=QUICK)


class Retries(logging.Handler):
    """Does something when the client says that it will try again."""

    def __init__(self, then: Callable[[], Any]) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._then = then

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())
        if len(self.seen) == 1:
            self._then()

    def __enter__(self) -> "Retries":
        """Whatever other tests have set for the logs of this process, these are heard."""
        logger = logging.getLogger("ostler.client")
        self._before = (logger.level, logger.disabled, logging.root.manager.disable)
        logger.setLevel(logging.DEBUG)
        logger.disabled = False
        logging.disable(logging.NOTSET)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("ostler.client")
        logger.removeHandler(self)
        level, logger.disabled, disabled_below = self._before
        logger.setLevel(level)
        logging.disable(disabled_below)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Unreadable),
        (401, NotAuthenticated),
        (403, NotAllowed),
        (429, QuotaExceeded),
        (404, NotFound),
        (409, Conflict),
        (413, TooLarge),
        (422, BadInput),
        (500, HubFailed),
        (418, HubFailed),
    ],
)
def test_a_problem_document_becomes_the_exception_it_stands_for(status: int, kind: type[OstlerError]) -> None:
    with (
        ScriptedHub(problem(status, "what was wrong")) as scripted,
        connect(scripted) as hub,
        pytest.raises(OstlerError, match="what was wrong") as caught,
    ):
        hub.job("j1")
    assert type(caught.value) is kind
    assert len(scripted.requests) == 1


def test_bad_input_keeps_the_fields_that_were_named() -> None:
    with (
        ScriptedHub(problem(422, "two things", [("gpu_count", "negative"), ("env", "odd")])) as scripted,
        connect(scripted) as hub,
        pytest.raises(BadInput) as caught,
    ):
        hub.submit({"command": ["true"]})
    assert caught.value.errors == [("gpu_count", "negative"), ("env", "odd")]


def test_an_error_that_is_no_problem_document_still_says_what_was_asked() -> None:
    with (
        ScriptedHub(reply(b"<html>nothing here</html>", 404, "text/html")) as scripted,
        connect(scripted) as hub,
        pytest.raises(NotFound, match=r"GET http://127\.0\.0\.1:\d+/v1/status answered 404"),
    ):
        hub.status()


def test_something_else_that_listens_there_is_not_taken_for_a_hub() -> None:
    with (
        ScriptedHub(reply(b"welcome", 200, "text/html")) as scripted,
        connect(scripted) as hub,
        pytest.raises(HubFailed, match="not an Ostler hub"),
    ):
        hub.status()


def test_the_token_goes_with_every_request() -> None:
    with ScriptedHub(reply({"workers": [], "next": None})) as scripted, connect(scripted, "s3cret") as hub:
        hub.workers()
    assert scripted.requests[0].headers["Authorization"] == "Bearer s3cret"


def test_a_token_with_a_line_break_is_refused_before_it_is_sent() -> None:
    with pytest.raises(NotAuthenticated, match="was it cut or wrapped"):
        Hub("http://127.0.0.1:1", "abc\ndef")


def test_a_submit_whose_answer_was_lost_is_sent_again_with_the_same_key_and_body() -> None:
    answer = {"id": "j1", "state": "pending", "notes": []}
    with ScriptedHub(drop, drop, reply(answer, 201)) as scripted, connect(scripted) as hub:
        assert hub.submit({"command": ["true"]}) == answer
    assert len(scripted.requests) == 3
    assert len({request.headers["Idempotency-Key"] for request in scripted.requests}) == 1
    assert len({request.body for request in scripted.requests}) == 1


def test_two_submits_have_different_keys() -> None:
    with ScriptedHub(reply({"id": "j1"}, 201)) as scripted, connect(scripted) as hub:
        hub.submit({"command": ["true"]})
        hub.submit({"command": ["true"]})
    keys = [request.headers["Idempotency-Key"] for request in scripted.requests]
    assert len(set(keys)) == 2


def test_several_specs_are_one_submit() -> None:
    with ScriptedHub(reply({"ids": ["a", "b"]}, 201)) as scripted, connect(scripted) as hub:
        assert hub.submit([{"command": ["true"]}, {"command": ["false"]}]) == {"ids": ["a", "b"]}
    assert msgspec.json.decode(scripted.requests[0].body) == [{"command": ["true"]}, {"command": ["false"]}]


def test_a_submit_waits_for_a_hub_that_starts() -> None:
    port = free_port()
    started: list[ScriptedHub] = []

    def start() -> None:
        started.append(ScriptedHub(reply({"id": "j1"}, 201), port=port).__enter__())

    with Retries(start) as retries, Hub(f"http://127.0.0.1:{port}", patience=QUICK) as hub:
        assert hub.submit({"command": ["true"]}) == {"id": "j1"}
    started[0].__exit__()
    assert "refused" in retries.seen[0]


def test_a_hub_that_says_it_is_stopping_is_asked_again() -> None:
    with (
        ScriptedHub(problem(503, "the hub is stopping"), reply({"id": "j1"}, 201)) as scripted,
        connect(scripted) as hub,
    ):
        assert hub.submit({"command": ["true"]})["id"] == "j1"


def test_a_hub_that_is_not_there_is_named_with_what_to_do() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Hub(url, patience=QUICK) as hub, pytest.raises(HubUnreachable) as caught:
        hub.status()
    assert str(caught.value) == (
        f"no hub answers at {url} (refused); start one with 'ostler up', or name the right one (--hub, OSTLER_HUB)"
    )


def test_tries_are_bounded() -> None:
    with (
        ScriptedHub(drop) as scripted,
        connect(scripted) as hub,
        pytest.raises(HubUnreachable, match="the connection broke"),
    ):
        hub.submit({"command": ["true"]})
    assert len(scripted.requests) == QUICK.tries


def test_whoever_only_asks_a_hub_that_never_answered_hears_soon() -> None:
    with ScriptedHub(drop) as scripted, connect(scripted) as hub, pytest.raises(HubUnreachable):
        hub.status()
    assert len(scripted.requests) == 2


def test_a_requeue_that_may_have_arrived_is_not_sent_twice() -> None:
    with ScriptedHub(drop) as scripted, connect(scripted) as hub, pytest.raises(HubUnreachable):
        hub.requeue("j1")
    assert len(scripted.requests) == 1


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_no_name_leads_to_another_address(name: str) -> None:
    with Hub("http://127.0.0.1:1") as hub, pytest.raises(NotFound):
        hub.job(name)


def test_names_are_quoted() -> None:
    with ScriptedHub(reply({"id": "x"})) as scripted, connect(scripted) as hub:
        hub.job("a b/c?d#e")
    assert scripted.paths == ["/v1/jobs/a%20b%2Fc%3Fd%23e"]


@pytest.mark.parametrize("under", ["/lab/ostler", "/lab/ostler/"])
def test_a_hub_under_a_path_of_a_proxy_is_asked_there(under: str) -> None:
    with ScriptedHub(reply({"id": "x"}), reply({"id": "x"})) as scripted, Hub(scripted.url + under) as hub:
        hub.job("a")
        hub.job("b")
    assert scripted.paths == ["/lab/ostler/v1/jobs/a", "/lab/ostler/v1/jobs/b"]


def test_queries_leave_out_what_was_not_asked() -> None:
    with ScriptedHub(reply({"jobs": [], "next": None})) as scripted, connect(scripted) as hub:
        hub.jobs()
        hub.jobs(state=["failed", "cancelled"], limit=5)
    assert scripted.paths == ["/v1/jobs", "/v1/jobs?state=failed%2Ccancelled&limit=5"]


def test_pages_are_followed_to_the_end() -> None:
    pages = [{"jobs": [{"id": "c"}, {"id": "b"}], "next": "7"}, {"jobs": [{"id": "a"}], "next": None}]
    with ScriptedHub(*(reply(page) for page in pages)) as scripted, connect(scripted) as hub:
        assert [job["id"] for job in hub.all_jobs(name="n")] == ["c", "b", "a"]
    assert scripted.paths == ["/v1/jobs?name=n&limit=500", "/v1/jobs?name=n&limit=500&cursor=7"]


def test_a_large_blob_that_is_there_already_is_not_sent_again() -> None:
    data = b"x" * (1 << 20)
    with ScriptedHub(reply(status=404), reply(status=201), reply(status=200)) as scripted, connect(scripted) as hub:
        digest = hub.put_blob(data)
        assert hub.put_blob(data) == digest == hashlib.sha256(data).hexdigest()
    assert [request.method for request in scripted.requests] == ["HEAD", "PUT", "HEAD"]
    assert scripted.requests[1].body == data


def test_of_results_it_is_told_which_were_too_much_for_one_answer() -> None:
    with ScriptedHub(reply({"results": {"0": "aGk="}, "left_out": [2]})) as scripted, connect(scripted) as hub:
        assert hub.results("j1", [0, 1, 2]) == ({0: b"hi"}, [2])
    assert msgspec.json.decode(scripted.requests[0].body) == {"indices": [0, 1, 2]}


def test_waiting_goes_on_through_a_hub_that_restarts() -> None:
    running, ended = {"id": "j1", "state": "running"}, {"id": "j1", "state": "succeeded"}
    broken = [drop] * 7  # more than one request's own tries
    with ScriptedHub(reply(running), *broken, reply(running), reply(ended)) as scripted, connect(scripted) as hub:
        assert wait_for_end(hub, "j1", None) == ended


def test_waiting_ends_with_a_hub_that_does_not_come_back() -> None:
    impatient = Patience(tries=2, first_pause_s=0.01, growth=1.0, outage_s=0.05)
    with ScriptedHub(drop) as scripted, Hub(scripted.url, patience=impatient) as hub, pytest.raises(HubUnreachable):
        wait_for_end(hub, "j1", None)


def test_a_wait_that_is_over_says_where_the_job_is() -> None:
    running = {"id": "j1", "state": "running"}
    with (
        ScriptedHub(reply(running)) as scripted,
        connect(scripted) as hub,
        pytest.raises(WaitTimeout, match="job j1 is still running after 0 s") as caught,
    ):
        wait_for_end(hub, "j1", 0)
    assert caught.value.document == running
    assert isinstance(caught.value, TimeoutError)


def test_a_map_that_has_no_time_left_says_so_though_there_is_no_hub() -> None:
    with ScriptedHub(drop) as scripted, Hub(scripted.url, patience=Patience(tries=1, outage_s=3600.0)) as hub:
        calls = Calls(hub, "j1", {"array": 2})
        results = Results(Job(hub, {"id": "j1", "state": "running"}), calls, 0.2, keep_errors=False)
        with pytest.raises(WaitTimeout, match=r"job j1 was waited for 0.2 s; no hub answers"):
            next(results)
    assert not any(path.endswith("/cancel") for path in scripted.paths)


SUCCEEDED = {
    "id": "j1",
    "state": "succeeded",
    "spec": {"metadata": {functions.CALL: {}}, "labels": [functions.PYTHON_LABEL]},
}


def test_a_value_is_waited_for_as_an_end_is() -> None:
    broken = [drop] * (QUICK.tries + 2)
    value = reply(pickle.dumps(("value", 42)))
    with ScriptedHub(reply(SUCCEEDED), *broken, value) as scripted, connect(scripted) as hub:
        assert Job(hub, "j1").result() == 42
    with ScriptedHub(reply(SUCCEEDED), *broken, value) as scripted, connect(scripted) as hub:
        assert Job(hub, "j1").exception() is None


def test_a_value_that_does_not_come_in_time_is_a_wait_that_is_over() -> None:
    with ScriptedHub(reply(SUCCEEDED), drop) as scripted, connect(scripted) as hub:
        with pytest.raises(WaitTimeout, match=r"job j1 was waited for 0.1 s; no hub answers"):
            Job(hub, "j1").result(timeout=0.1)
        with pytest.raises(WaitTimeout):
            Job(hub, "j1").exception(timeout=0.1)


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    monkeypatch.setattr("ostler.client.transport.LATE_S", 0.1)
    over = threading.Event()
    yield stall(over)
    over.set()


def test_a_wait_ends_in_time_though_the_hub_has_stalled(stalled: Step) -> None:
    with ScriptedHub(stalled) as scripted, connect(scripted) as hub:
        with pytest.raises(WaitTimeout, match=r"waited for 0.1 s; .*did not answer in time"):
            Job(hub, "j1").result(timeout=0.1)
        assert len(scripted.requests) == 1


def test_a_map_ends_in_time_though_the_hub_has_stalled(stalled: Step) -> None:
    with ScriptedHub(stalled) as scripted, connect(scripted) as hub:
        results = Results(Job(hub, "j1"), Calls(hub, "j1", {"array": 2}), 0.1, keep_errors=False)
        with pytest.raises(WaitTimeout, match=r"waited for 0.1 s; .*did not answer in time"):
            next(results)
        assert len(scripted.requests) == 1


def test_a_map_that_is_over_is_read_to_its_end_though_its_time_is_over_too() -> None:
    cancelled = {"id": "j1.0", "state": "cancelled", "tasks": [], "next": None}
    with ScriptedHub(reply(cancelled)) as scripted, connect(scripted) as hub:
        results = Results(Job(hub, "j1"), Calls(hub, "j1", {"array": 1}), 0.0, keep_errors=False)
        with pytest.raises(JobCancelled):
            next(results)


def test_many_threads_share_one_hub() -> None:
    with ScriptedHub(reply({"id": "x"})) as scripted, connect(scripted) as hub:
        threads = [threading.Thread(target=lambda: [hub.job("x") for _ in range(20)]) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(scripted.requests) == 320


def test_errors_survive_a_pickle_as_they_may_cross_processes() -> None:
    error = JobFailed("job j1 failed", {"id": "j1"}, "the log")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "job j1 failed\nthe end of its log:\nthe log"
    assert isinstance(pickle.loads(pickle.dumps(WaitTimeout("late", {"id": "j1"}))), WaitTimeout)
