"""The table of routes: what the hub answers, and to whom."""

from starlette.requests import Request
from starlette.responses import Response

from ostler.core.explain import Why
from ostler.domain.job import JobSpec
from ostler.hub.api.fleet import FleetApi, NewToken
from ostler.hub.api.jobs import Indices, JobsApi
from ostler.hub.api.logs import LogsApi
from ostler.hub.api.openapi import describe
from ostler.hub.api.routes import (
    ANY_METHOD,
    ANYONE,
    BLOBS,
    OPERATORS,
    READERS,
    USERS,
    WORKERS,
    Route,
    SocketRoute,
    json_response,
)
from ostler.hub.cli_socket import CliSocket
from ostler.hub.services import Services
from ostler.hub.sessions import Sessions

SERVICE = "/services/{name}/{path:path}"
PAGE = ("limit", "cursor")


def routes(jobs: JobsApi, logs: LogsApi, fleet: FleetApi, services: Services) -> list[Route]:
    found = [*_jobs(jobs, logs), *_fleet(fleet), *_workers(logs)]
    found.append(
        Route(method=ANY_METHOD, path=SERVICE, handler=services.call, roles=USERS, summary="Call a running service")
    )

    async def openapi(_: Request) -> Response:
        return json_response(describe(found))

    found.append(_get("/openapi.json", openapi, READERS, "Describe this API"))
    return found


def sockets(workers: Sessions, cli: CliSocket, services: Services) -> list[SocketRoute]:
    return [
        SocketRoute(path="/v1/ws/worker", endpoint=workers.serve, roles=WORKERS),
        SocketRoute(path="/v1/ws/cli", endpoint=cli.serve, roles=READERS),
        SocketRoute(path="/v1/ws/relay/{relay_id}", endpoint=services.relays.serve, roles=WORKERS),
        SocketRoute(path=SERVICE, endpoint=services.call_socket, roles=USERS),
    ]


def _get(path: str, handler, roles, summary, **more) -> Route:  # type: ignore[no-untyped-def]
    return Route(method="GET", path=path, handler=handler, roles=roles, summary=summary, **more)


def _post(path: str, handler, roles, summary, **more) -> Route:  # type: ignore[no-untyped-def]
    return Route(method="POST", path=path, handler=handler, roles=roles, summary=summary, **more)


def _jobs(jobs: JobsApi, logs: LogsApi) -> list[Route]:
    one = "/v1/jobs/{id}"
    return [
        _post("/v1/jobs", jobs.submit, USERS, "Submit a job, or an array of them", body=JobSpec, status=201),
        _get(
            "/v1/jobs",
            jobs.listing,
            READERS,
            "List jobs, newest first",
            query=("state", "status", "name", "user", *PAGE),
        ),
        _get(one, jobs.show, READERS, "Show a job or one task of an array", query=("wait",)),
        _get(f"{one}/tasks", jobs.tasks, READERS, "List the tasks of an array", query=("after", "limit")),
        _get(f"{one}/why", jobs.why, READERS, "Say why a job is where it is", answer=Why),
        _get(f"{one}/logs", logs.read, READERS, "Read a job's log", query=("follow", "offset", "attempt")),
        _get(f"{one}/events", jobs.events, READERS, "List what has happened to a job", query=("after",)),
        _get(f"{one}/result", jobs.result, READERS, "Fetch the value that a function returned"),
        _post(f"{one}/results", jobs.results, READERS, "Fetch the values of several tasks of an array", body=Indices),
        _post(f"{one}/cancel", jobs.cancel, USERS, "Cancel a job"),
        _post(f"{one}/requeue", jobs.requeue, USERS, "Run a job again"),
    ]


def _fleet(fleet: FleetApi) -> list[Route]:
    return [
        _get("/v1/workers", fleet.workers, READERS, "List the workers", query=("backend",)),
        _get("/v1/workers/{id}", fleet.worker, READERS, "Show a worker"),
        _post("/v1/workers/{id}/drain", fleet.drain, OPERATORS, "Close a worker to new work"),
        _post("/v1/workers/{id}/resume", fleet.resume, OPERATORS, "Open a drained worker again"),
        _get("/v1/status", fleet.status, READERS, "Show the fleet in a few numbers"),
        _get("/v1/events", fleet.events, READERS, "Follow every change as server-sent events", query=("after",)),
        _get("/v1/tokens", fleet.tokens, OPERATORS, "List the tokens"),
        _post("/v1/tokens", fleet.create_token, OPERATORS, "Create a token", body=NewToken, status=201),
        Route(
            method="DELETE",
            path="/v1/tokens/{id}",
            handler=fleet.revoke_token,
            roles=OPERATORS,
            summary="Revoke a token",
        ),
        _get("/v1/me", fleet.me, (*READERS, *WORKERS), "Say whose token this is"),
        _get("/v1/health", fleet.health, ANYONE, "Say that the hub is up"),
        _get("/metrics", fleet.metrics, READERS, "Prometheus metrics"),
    ]


def _workers(logs: LogsApi) -> list[Route]:
    blob = "/v1/snapshots/{sha256}"
    return [
        _post("/v1/tasks/{id}/logs", logs.write, WORKERS, "Bring a piece of a task's log", query=("attempt", "offset")),
        Route(
            method="PUT",
            path=blob,
            handler=logs.put_blob,
            roles=BLOBS,
            summary="Store bytes by their sha256",
            status=201,
        ),
        _get(blob, logs.get_blob, BLOBS, "Fetch bytes by their sha256"),
    ]
