"""The table of routes: what the hub answers, and to whom."""

from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ostler.core.foresight.explain import Why
from ostler.domain.job import JobSpec
from ostler.hub.api.artifacts import ArtifactsApi
from ostler.hub.api.enrol import EnrolApi, NewToken, NewWorker
from ostler.hub.api.fleet import FleetApi
from ostler.hub.api.jobs import Indices, JobsApi
from ostler.hub.api.logs import LogsApi
from ostler.hub.api.manifest import ManifestApi
from ostler.hub.api.openapi import describe
from ostler.hub.api.pull import Beat, Claim, Completion, Failure, PullApi
from ostler.hub.api.routes import (
    ANY_METHOD,
    ANYONE,
    BLOBS,
    CLAIMERS,
    NEWCOMERS,
    OPERATORS,
    READERS,
    USERS,
    WORKERS,
    Route,
    SocketRoute,
    json_response,
)
from ostler.hub.api.sweeps import SweepsApi
from ostler.hub.api.whatif import WhatIf, WhatIfApi
from ostler.hub.api.why import WhyApi
from ostler.hub.cli_socket import CliSocket
from ostler.hub.gateway.pages import ModelsApi
from ostler.hub.services import Services
from ostler.hub.sessions import Sessions

SERVICE = "/services/{name}/{path:path}"
PAGE = ("limit", "cursor")


class TrainingApis(NamedTuple):
    pull: PullApi
    manifest: ManifestApi
    sweeps: SweepsApi
    artifacts: ArtifactsApi


class ForesightApis(NamedTuple):
    why: WhyApi
    whatif: WhatIfApi


def routes(
    jobs: JobsApi,
    logs: LogsApi,
    fleet: FleetApi,
    enrol: EnrolApi,
    services: Services,
    training: TrainingApis,
    models: ModelsApi,
    foresight: ForesightApis,
) -> list[Route]:
    found = [*_jobs(jobs, logs), *_foresight(foresight), *_fleet(fleet), *_enrol(enrol), *_workers(logs)]
    found += [*_pull(training.pull, jobs), *_manifest(training.manifest, training.sweeps)]
    found += _artifacts(training.artifacts)
    found += _models(models)
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
        *jobs_in_the_ledger(jobs),
        _get(one, jobs.show, READERS, "Show a job or one task of an array", query=("wait",)),
        _get(f"{one}/logs", logs.read, READERS, "Read a job's log", query=("follow", "offset", "tail", "attempt")),
        _post(f"{one}/cancel", jobs.cancel, USERS, "Cancel a job"),
        _post(f"{one}/requeue", jobs.requeue, USERS, "Run a job again"),
    ]


def jobs_in_the_ledger(jobs: JobsApi) -> list[Route]:
    """What can be answered without knowing the present."""
    one = "/v1/jobs/{id}"
    query = ("state", "status", "name", "user", *PAGE)
    return [
        _get("/v1/jobs", jobs.listing, READERS, "List jobs, newest first", query=query),
        _get(f"{one}/tasks", jobs.tasks, READERS, "List the tasks of an array", query=("after", "limit")),
        _get(f"{one}/events", jobs.events, READERS, "List what has happened to a job", query=("after",)),
        _get(f"{one}/result", jobs.result, READERS, "Fetch the value that a function returned"),
        _post(f"{one}/results", jobs.results, READERS, "Fetch the values of several tasks of an array", body=Indices),
    ]


def _foresight(foresight: ForesightApis) -> list[Route]:
    why, one = foresight.why, "/v1/jobs/{id}"
    return [
        _get(f"{one}/why", why.why, READERS, "Say why a job is where it is", answer=Why, query=("brief",)),
        _get(f"{one}/estimate", why.estimate, READERS, "Say when a job begins and ends"),
        _post("/v1/whatif", foresight.whatif.whatif, READERS, "Say what would start when, if", body=WhatIf),
    ]


def _fleet(fleet: FleetApi) -> list[Route]:
    return [
        _get("/v1/workers", fleet.workers, READERS, "List the workers", query=("backend", *PAGE)),
        _get("/v1/workers/{id}", fleet.worker, READERS, "Show a worker"),
        _post("/v1/workers/{id}/drain", fleet.drain, OPERATORS, "Close a worker to new work"),
        _post("/v1/workers/{id}/resume", fleet.resume, OPERATORS, "Open a drained worker again"),
        _get("/v1/status", fleet.status, READERS, "Show the fleet in a few numbers"),
        _get("/v1/events", fleet.events, READERS, "Follow every change as server-sent events", query=("after",)),
        _get("/v1/hubs", fleet.hubs, (*READERS, *WORKERS), "List the hubs on this ledger"),
        _get("/v1/me", fleet.me, (*READERS, *WORKERS), "Say whose token this is"),
        _get("/v1/health", fleet.health, ANYONE, "Say that the hub is up"),
        _get("/metrics", fleet.metrics, READERS, "Prometheus metrics"),
    ]


def _enrol(enrol: EnrolApi) -> list[Route]:
    return [
        _get("/v1/tokens", enrol.tokens, OPERATORS, "List the tokens"),
        _post("/v1/tokens", enrol.create_token, OPERATORS, "Create a token", body=NewToken, status=201),
        Route(
            method="DELETE",
            path="/v1/tokens/{id}",
            handler=enrol.revoke_token,
            roles=OPERATORS,
            summary="Revoke a token",
        ),
        _post(
            "/v1/enrol", enrol.enrol, NEWCOMERS, "Exchange a join token for a worker's own", body=NewWorker, status=201
        ),
        _get("/v1/enrol", enrol.seen, WORKERS, "Say how the hub sees this worker"),
        _post("/v1/leave", enrol.leave, WORKERS, "Give a worker's own token back"),
    ]


def _pull(pull: PullApi, jobs: JobsApi) -> list[Route]:
    one = "/v1/job/{id}"
    return [
        _post("/v1/job/claim", pull.claim, CLAIMERS, "Claim the next task that fits this machine", body=Claim),
        _post(f"{one}/heartbeat", pull.heartbeat, CLAIMERS, "Say that a claimed task still runs", body=Beat),
        _post(f"{one}/complete", pull.complete, CLAIMERS, "Say that a claimed task is done", body=Completion),
        _post(f"{one}/fail", pull.fail, CLAIMERS, "Say that a claimed task failed", body=Failure),
        _post(f"{one}/cancel", jobs.cancel, OPERATORS, "Cancel any job"),
        _post(f"{one}/requeue", jobs.requeue, OPERATORS, "Run any job again"),
    ]


def _models(models: ModelsApi) -> list[Route]:
    one = "/v1/models/{name:path}"
    return [
        _get("/v1/models", models.listing, READERS, "List the gateway's models"),
        _get("/v1/models/activity", models.activity, READERS, "List the last requests for models"),
        _post("/v1/models/reload", models.reload, OPERATORS, "Read the models' configuration again"),
        _post(f"{one}/load", models.load, USERS, "Load a model"),
        _post(f"{one}/unload", models.unload, USERS, "Unload a model"),
        _post(f"{one}/pin", models.pin, OPERATORS, "Keep a model loaded, whoever wants its room"),
        _post(f"{one}/unpin", models.unpin, OPERATORS, "Let a model be evicted again"),
    ]


def _manifest(manifest: ManifestApi, sweeps: SweepsApi) -> list[Route]:
    one = "/v1/sweeps/{name:path}"
    return [
        Route(
            method="PUT",
            path="/v1/manifest",
            handler=manifest.apply,
            roles=OPERATORS,
            summary="Make the queue follow a manifest",
            query=("plan", "file"),
        ),
        _get("/v1/manifest", manifest.show, READERS, "Show the manifest that was applied last"),
        _post("/v1/manifest/reload", manifest.reload, OPERATORS, "Read the hub's manifest file again"),
        _get("/v1/sweeps", sweeps.listing, READERS, "List the sweeps"),
        _post(f"{one}/cancel", sweeps.cancel, OPERATORS, "Cancel all runs of a sweep"),
        _post(f"{one}/requeue", sweeps.requeue, OPERATORS, "Run a sweep again"),
        _get(one, sweeps.show, READERS, "Show a sweep and each of its runs", query=("metric",)),
    ]


def _artifacts(artifacts: ArtifactsApi) -> list[Route]:
    path, one = "/v1/model/{sha256}", "/v1/artifacts/{id}"
    upload = "Store an artifact, or a part of it, by its sha256"
    return [
        Route(method="PUT", path=path, handler=artifacts.put, roles=BLOBS, summary=upload, status=201),
        # Before the route for GET, which would answer HEAD too.
        Route(
            method="HEAD", path=path, handler=artifacts.head, roles=BLOBS, summary="Say how much of an artifact is here"
        ),
        _get(path, artifacts.fetch, (*READERS, *WORKERS), "Fetch an artifact"),
        _get("/v1/artifacts", artifacts.listing, READERS, "List the artifacts", query=("job", "model", *PAGE)),
        _post(
            "/v1/artifacts/gc",
            artifacts.collect,
            OPERATORS,
            "Remove artifacts that nobody needs",
            query=("older_than_s", "dry_run"),
        ),
        _get(one, artifacts.show, READERS, "Show an artifact"),
        _post(f"{one}/verify", artifacts.verify, USERS, "Read an artifact again and compare it with its name"),
    ]


def _workers(logs: LogsApi) -> list[Route]:
    checkpoint = "/v1/checkpoints/{sha256}"
    blob = "/v1/snapshots/{sha256}"
    return [
        _post(
            "/v1/tasks/{id}/logs",
            logs.write,
            WORKERS,
            "Bring a piece of a task's log",
            query=("attempt", "offset", "gap", "final"),
        ),
        Route(
            method="PUT",
            path=blob,
            handler=logs.put_blob,
            roles=BLOBS,
            summary="Store bytes by their sha256",
            status=201,
        ),
        _get(blob, logs.get_blob, BLOBS, "Fetch bytes by their sha256"),
        Route(
            method="PUT",
            path=checkpoint,
            handler=logs.put_checkpoint,
            roles=WORKERS,
            summary="Store a task's checkpoint",
            status=201,
        ),
        _get(checkpoint, logs.get_checkpoint, WORKERS, "Fetch a task's checkpoint"),
    ]
