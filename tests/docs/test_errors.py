"""Every error has its paragraph and every paragraph its error; the `type` of a problem document leads there."""

import ast
import importlib
import json
import pkgutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ostler
from ostler.cli import exits
from ostler.domain import advice
from ostler.domain.advice.entry import ANSWER, EXIT, GATEWAY, PYTHON, REASON
from ostler.domain.errors import OstlerError
from ostler.domain.states import TERMINAL

SOURCE = Path(ostler.__file__).parent
OF_HTTP_ITSELF = {"not-found", "method-not-allowed"}
"""What starlette answers where there is no route."""
ENDS: dict[str, dict[str, Any]] = {
    "ended-by-itself": {"command": ["sh", "-c", "echo bad luck; exit 3"]},
    "ended-by-signal": {"command": ["sh", "-c", "kill -SEGV $$"]},
    "ended-not-started": {"command": ["no-such-program"]},
    "ended-by-step": {"command": ["true"], "prolog": ["false"]},
    "ended-unplaced": {"command": ["true"], "gpu_count": 64, "scheduling_timeout_seconds": 0.2},
    "ended-in-part": {"command": ["sh", "-c", "exit $OSTLER_INDEX"], "array": 2},
    "ended-by-budget": {"command": ["sleep", "60"], "max_runtime_hours": 0.0001},
    "ended-with-its-outputs": {"command": ["sh", "-c", "ln -s /etc/passwd $OSTLER_OUT/link"]},
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[ostler.Fleet]:
    with ostler.local(slots=4) as found:
        yield found


@cache
def classes() -> list[type[OstlerError]]:
    for module in pkgutil.walk_packages(ostler.__path__, "ostler."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def below(kind: type[OstlerError]) -> Iterator[type[OstlerError]]:
        yield kind
        for one in kind.__subclasses__():
            yield from below(one)

    return [kind for kind in below(OstlerError) if kind.__module__.startswith("ostler.")]


def test_every_class_of_errors_has_a_paragraph_and_every_paragraph_a_class() -> None:
    titles = {advice.name_of(kind.title) for kind in classes()}
    told = {one.name for one in advice.ALL.values() if one.kind in (ANSWER, PYTHON)}
    assert titles - told == set(), "say what to do about them in domain/advice"
    assert told - titles == OF_HTTP_ITSELF


def test_the_signs_are_the_statuses_titles_and_names_of_the_classes() -> None:
    by_title: dict[str, list[type[OstlerError]]] = {}
    for kind in classes():
        by_title.setdefault(advice.name_of(kind.title), []).append(kind)
    for name, kinds in by_title.items():
        one = advice.ALL[name]
        signs = {f"{kind.status} {kind.title}" if one.kind == ANSWER else kind.__name__ for kind in kinds}
        assert one.sign in signs, name


def test_every_exit_code_has_a_paragraph() -> None:
    codes = {str(value) for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert {one.sign for one in advice.ALL.values() if one.kind == EXIT} == codes


def test_every_code_of_the_gateways_answers_has_a_paragraph() -> None:
    codes = set()
    for path in [*SOURCE.glob("gateway/**/*.py"), *SOURCE.glob("hub/gateway/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("Refusal", "Refuse"):
                words = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                codes.update([word for word in words if word.replace("_", "").isalpha() and word.islower()][:1])
    assert len(codes) > 10
    assert {one.sign for one in advice.ALL.values() if one.kind == GATEWAY} == codes


def asked(fleet: ostler.Fleet, path: str, accept: str = "*/*") -> tuple[int, str, str]:
    request = urllib.request.Request(fleet.url + path, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_the_type_of_a_problem_leads_to_its_paragraph_without_a_token(fleet: ostler.Fleet) -> None:
    status, kind, body = asked(fleet, "/v1/jobs")
    assert (status, kind) == (401, "application/problem+json")
    where = json.loads(body)["type"]
    assert where == "/docs/errors/not-authenticated"
    status, kind, text = asked(fleet, where)
    assert status == 200 and kind.startswith("text/plain")
    assert advice.ALL["not-authenticated"].act in text
    status, kind, page = asked(fleet, where, "text/html,*/*")
    assert status == 200 and kind.startswith("text/html")
    assert "<code>OSTLER_TOKEN</code>" in page and "<script" not in page


def test_an_error_that_there_is_not_is_not_found(fleet: ostler.Fleet) -> None:
    status, _, body = asked(fleet, "/docs/errors/misfortune")
    assert status == 404 and "bad-input" in json.loads(body)["detail"]


@pytest.mark.parametrize("name", ENDS)
def test_how_a_job_ended_is_told_by_its_reason(fleet: ostler.Fleet, name: str) -> None:
    ended = fleet.wait(fleet.hub.submit(ENDS[name])["id"], timeout=60)
    assert found(ended) == name, ended["reason"]


def test_a_job_that_was_cancelled_and_one_behind_it_are_told_by_their_reasons(fleet: ostler.Fleet) -> None:
    first = fleet.submit_command(["sleep", "60"])
    behind = fleet.hub.submit({"command": ["true"], "depends_on": [first.id]})["id"]
    first.cancel()
    assert found(fleet.wait(first.id, timeout=60)) == "ended-by-cancel"
    assert found(fleet.wait(behind, timeout=60)) == "ended-by-dependency"


def found(document: dict[str, Any]) -> str:
    assert document["state"] in TERMINAL
    one = advice.of_reason(document["reason"])
    return one.name if one else ""


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("box did not come back within 30 s; lost 4 times, max_attempts is 3", "ended-by-loss"),
        ("out of GPU memory (exit code 1): CUDA out of memory; ask for more with min_vram_gb", "ended-out-of-memory"),
        ("liveness failed: 500; failed 3 times, max_retries is 2", "ended-unhealthy"),
        ("rank 2: exit code 1: boom", "ended-by-itself"),
        ("cancelled; box did not come back within 30 s", "ended-unseen"),
    ],
)
def test_reasons_that_take_a_broken_machine_are_known_too(reason: str, name: str) -> None:
    told = advice.of_reason(reason)
    assert told is not None and (told.name, told.kind) == (name, REASON)
