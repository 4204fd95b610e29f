"""The hub's description of itself, held against what it really answers: clients in other languages are made from it."""

import re
from typing import Any

from jsonschema import Draft202012Validator
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.puller import apply

from ostler.hub.api import described

Document = dict[str, Any]


def closed(schema: Any) -> Any:
    """The same, and a field that is not told of is a mistake."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {"additionalProperties": False} if "properties" in schema else {}
    return {**strict, **{name: closed(one) for name, one in schema.items()}}


class Description:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.held: set[tuple[str, str]] = set()

    def hold(self, method: str, path: str, status: int, answer: Any) -> None:
        """This answer to what the description says of it."""
        operation = self.document["paths"][path][method.lower()]
        schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
        whole = closed({**schema, "components": self.document["components"]})
        errors = [f"{one.json_path}: {one.message}" for one in Draft202012Validator(whole).iter_errors(answer)]
        assert not errors, f"{method} {path}: {errors}"
        self.held.add((method, path))


async def test_what_the_hub_answers_is_what_its_description_says(hub: RunningHub, api: Api) -> None:
    description = Description(await api.get("/openapi.json"))

    async def call(method: str, path: str, body: Any = None, status: int = 200, **filled: str) -> Any:
        where = re.sub(r"{(\w+)}", lambda found: filled[found[1]], path) + filled.get("query", "")
        given = {} if body is None else {"data": body} if isinstance(body, bytes) else {"json": body}
        answer = await api.call(method, where, **given)
        assert answer.status == status, answer
        description.hold(method, path, status, answer.json())
        return answer.json()

    worker = await hub.worker(gpu_count=1, vram_gb=24)
    one = await call("POST", "/v1/jobs", {"command": ["true"], "gpu_count": 1}, 201)
    task = await worker.take(one["id"])
    await call("GET", "/v1/jobs/{id}", id=one["id"])
    await call("GET", "/v1/workers", None)
    await call("GET", "/v1/workers/{id}", id="w")
    await worker.end(task)
    await call("GET", "/v1/jobs/{id}", id=one["id"])
    await call("GET", "/v1/jobs/{id}/events", id=one["id"])
    assert (await call("GET", "/v1/jobs/{id}/tasks", id=one["id"], query="?ended=1"))["tasks"]
    again = await call("POST", "/v1/jobs", {"command": ["true"], "gpu_count": 1, "id": "mine"}, 201)
    await call("POST", "/v1/jobs", {"command": ["true"], "gpu_count": 1, "id": "mine"}, 200)
    task = await worker.take(again["id"])
    await worker.end(task)
    many = await call("POST", "/v1/jobs", [{"command": ["true"], "array": 3, "gpu_count": 4}], 201)
    array = many["ids"][0]
    await call("GET", "/v1/jobs", None)
    await call("GET", "/v1/jobs/{id}", id=array)
    await call("GET", "/v1/jobs/{id}", id=f"{array}.1")
    await call("POST", "/v1/jobs/{id}/priority", {"priority": 3}, id=array)
    await call("POST", "/v1/jobs/{id}/cancel", id=array)
    await call("POST", "/v1/jobs/{id}/requeue", id=array)
    await call("GET", "/v1/jobs/{id}/tasks", id=array)
    await call("GET", "/v1/jobs/{id}/events", id=array)
    await call("POST", "/v1/jobs/{id}/results", {"indices": [0]}, id=array)
    assert (await call("GET", "/v1/queue"))["queue"]
    await call("GET", "/v1/jobs/{id}/estimate", id=array)
    await call("GET", "/v1/jobs/{id}/estimate", id=one["id"])
    await call("POST", "/v1/whatif", {"spec": {"command": ["true"], "gpu_count": 1}})
    await call("POST", "/v1/whatif", {"job_id": array, "add_workers": [{"like": "w"}]})
    await call("POST", "/v1/workers/{id}/drain", id="w")
    assert (timeline := await call("GET", "/v1/timeline"))["blocks"] and timeline["machines"] and timeline["away"]
    await call("POST", "/v1/workers/{id}/resume", id="w")
    await call("PUT", "/v1/secrets/{name}", b"hush", name="key")
    assert (await call("GET", "/v1/secrets"))["secrets"]
    await call("DELETE", "/v1/secrets/{name}", name="key")
    assert (await call("GET", "/v1/audit"))["rows"]
    assert (await apply(api)).status == 200
    sweep = (await call("GET", "/v1/sweeps"))["sweeps"][0]["name"]
    for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/requeue")):
        assert (await call(method, "/v1/sweeps/{name}" + path, name=sweep))["jobs"]
    await call("GET", "/v1/models")
    for path in ("/v1/status", "/v1/health", "/v1/me", "/v1/tokens", "/v1/artifacts"):
        await call("GET", path)
    token = await call("POST", "/v1/tokens", {"role": "user", "user": "ann"}, 201)
    await call("DELETE", "/v1/tokens/{id}", id=token["id"])
    assert described.ANSWERS.keys() - description.held == {("GET", "/v1/artifacts/{id}")}
    await worker.heard()


async def test_every_shape_that_is_told_is_told_of_a_route_that_is_there(api: Api) -> None:
    document = await api.get("/openapi.json")
    there = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    told = described.ANSWERS.keys() | described.BODIES.keys() | described.MEDIA.keys() | described.HEADERS.keys()
    assert told <= there


async def test_operations_have_names_that_a_language_can_have(api: Api) -> None:
    document = await api.get("/openapi.json")
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
    assert {"postJobs", "getJobsByIdLogs", "getIndex"} <= set(names)
    assert all(re.fullmatch("[a-z][A-Za-z0-9]+", name) for name in names)


async def test_what_may_be_left_out_of_a_spec_is_not_required_by_clients(api: Api) -> None:
    spec = (await api.get("/openapi.json"))["components"]["schemas"]["JobSpec"]
    assert not spec.get("required")
    assert not [name for name, field in spec["properties"].items() if "default" in field]
