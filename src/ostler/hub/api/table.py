"""The table of routes: what the hub answers. To whom is said in hub/permissions.py."""

from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ostler.core.foresight.explain import Why
from ostler.domain.job import JobSpec
from ostler.hub.api.artifacts import ArtifactsApi
from ostler.hub.api.audit import AuditApi
from ostler.hub.api.curves import CurvesApi
from ostler.hub.api.enrol import EnrolApi, NewToken, NewWorker
from ostler.hub.api.fleet import FleetApi
from ostler.hub.api.jobs import Indices, JobsApi, NewPriority
from ostler.hub.api.logs import LogsApi
from ostler.hub.api.manifest import ManifestApi
from ostler.hub.api.openapi import describe
from ostler.hub.api.pull import Beat, Claim, Completion, Failure, PullApi
from ostler.hub.api.queue import QueueApi
from ostler.hub.api.routes import Route, SocketRoute, json_response
from ostler.hub.api.secrets import SecretsApi
from ostler.hub.api.sweeps import SweepsApi
from ostler.hub.api.timeline import TimelineApi
from ostler.hub.api.whatif import WhatIf, WhatIfApi
from ostler.hub.api.why import WhyApi
from ostler.hub.beside import Beside
from ostler.hub.cli_socket import CliSocket
from ostler.hub.gateway.pages import ModelsApi
from ostler.hub.gateway.playground import Playground
from ostler.hub.permissions import ANY_METHOD
from ostler.hub.services import Services
from ostler.hub.sessions import Sessions
from ostler.hub.web import errors
from ostler.hub.web.pages import Pages
from ostler.hub.web.session import Login, SessionApi, Shown

SERVICE = "/services/{name}/{path:path}"
PAGE = ("limit", "cursor")
BYTES = "application/octet-stream"


class TrainingApis(NamedTuple):
    pull: PullApi
    manifest: ManifestApi
    sweeps: SweepsApi
    artifacts: ArtifactsApi


class ForesightApis(NamedTuple):
    why: WhyApi
    whatif: WhatIfApi
    queue: QueueApi
    timeline: TimelineApi


def routes(
    jobs: JobsApi,
    logs: LogsApi,
    fleet: FleetApi,
    enrol: EnrolApi,
    services: Services,
    training: TrainingApis,
    models: ModelsApi,
    foresight: ForesightApis,
    session: SessionApi,
    pages: Pages,
) -> list[Route]:
    found = [
        *_web(session, pages),
        *_jobs(jobs, logs),
        *_foresight(foresight),
        *_fleet(fleet),
        *_enrol(enrol),
        *_workers(logs),
    ]
    found += [*_pull(training.pull, jobs), *_manifest(training.manifest, training.sweeps)]
    found += _artifacts(training.artifacts)
    found += _models(models)
    found.append(Route(method=ANY_METHOD, path=SERVICE, handler=services.call, summary="Call a running service"))

    async def openapi(_: Request) -> Response:
        return json_response(describe(found))

    found.append(_get("/openapi.json", openapi, "Describe this API"))
    return found


def looking(curves: CurvesApi, playground: Playground) -> list[Route]:
    return [
        _post("/v1/models/chat", playground.chat, "Talk to a model, as the gateway's /v1/chat/completions"),
        _get("/v1/jobs/{id}/curves", curves.show, "Show what a job takes and tells over time", query=("attempt",)),
    ]


def guarding(audit: AuditApi, secrets: SecretsApi) -> list[Route]:
    one, query = "/v1/secrets/{name}", ("user", "fleet")
    return [
        _get("/v1/audit", audit.listing, "List who did what", query=("since", "actor", "object", *PAGE)),
        _get("/v1/secrets", secrets.listing, "List the secrets, without what is in them"),
        Route(method="PUT", path=one, handler=secrets.put, summary="Set a secret", query=query, takes=BYTES),
        Route(method="DELETE", path=one, handler=secrets.delete, summary="Delete a secret", query=query),
    ]


def sockets(workers: Sessions, cli: CliSocket, services: Services, beside: Beside) -> list[SocketRoute]:
    return [
        SocketRoute(path="/v1/jobs/{id}/exec", endpoint=beside.serve),
        SocketRoute(path="/v1/ws/worker", endpoint=workers.serve),
        SocketRoute(path="/v1/ws/cli", endpoint=cli.serve),
        SocketRoute(path="/v1/ws/relay/{relay_id}", endpoint=services.relays.serve),
        SocketRoute(path=SERVICE, endpoint=services.call_socket),
    ]


def _get(path: str, handler, summary, **more) -> Route:  # type: ignore[no-untyped-def]
    return Route(method="GET", path=path, handler=handler, summary=summary, **more)


def _post(path: str, handler, summary, **more) -> Route:  # type: ignore[no-untyped-def]
    return Route(method="POST", path=path, handler=handler, summary=summary, **more)


def _web(session: SessionApi, pages: Pages) -> list[Route]:
    one = "/v1/session"
    return [
        _get("/", pages.index, "Show the dashboard"),
        _get("/assets/{path:path}", pages.asset, "Fetch a file of the dashboard"),
        _get("/docs/errors/{name}", errors.explain, "Say what an error means, and what to do"),
        _post(one, session.begin, "Log a browser in with a token", body=Login, answer=Shown),
        _get(one, session.show, "Say whose session this is", answer=Shown),
        Route(method="DELETE", path=one, handler=session.end, summary="Log a browser out", status=204),
    ]


def _jobs(jobs: JobsApi, logs: LogsApi) -> list[Route]:
    one = "/v1/jobs/{id}"
    return [
        _post("/v1/jobs", jobs.submit, "Submit a job, or an array of them", body=JobSpec, status=201, also=(200,)),
        *jobs_in_the_ledger(jobs),
        _get(one, jobs.show, "Show a job or one task of an array", query=("wait",)),
        _get(f"{one}/logs", logs.read, "Read a job's log", query=("follow", "offset", "tail", "attempt")),
        _post(f"{one}/cancel", jobs.cancel, "Cancel a job"),
        _post(f"{one}/requeue", jobs.requeue, "Run a job again"),
        _post(f"{one}/priority", jobs.prioritize, "Give a job another priority", body=NewPriority),
    ]


def jobs_in_the_ledger(jobs: JobsApi) -> list[Route]:
    """What can be answered without knowing the present."""
    one = "/v1/jobs/{id}"
    query = ("state", "status", "name", "user", *PAGE)
    return [
        _get("/v1/jobs", jobs.listing, "List jobs, newest first", query=query),
        _get(f"{one}/tasks", jobs.tasks, "List the tasks of an array", query=("after", "limit", "ended")),
        _get(f"{one}/events", jobs.events, "List what has happened to a job", query=("after", "newest")),
        _get(f"{one}/result", jobs.result, "Fetch the value that a function returned"),
        _post(f"{one}/results", jobs.results, "Fetch the values of several tasks of an array", body=Indices),
    ]


def _foresight(foresight: ForesightApis) -> list[Route]:
    why, one = foresight.why, "/v1/jobs/{id}"
    return [
        _get(f"{one}/why", why.why, "Say why a job is where it is", answer=Why, query=("brief",)),
        _get(f"{one}/estimate", why.estimate, "Say when a job begins and ends"),
        _get("/v1/queue", foresight.queue.listing, "Show who is next, and who has used how much", query=("limit",)),
        _get(
            "/v1/timeline", foresight.timeline.show, "Show what ran where and when", query=("since", "until", "limit")
        ),
        _post("/v1/whatif", foresight.whatif.whatif, "Say what would start when, if", body=WhatIf),
    ]


def _fleet(fleet: FleetApi) -> list[Route]:
    return [
        _get("/v1/workers", fleet.workers, "List the workers", query=("backend", "id", *PAGE)),
        _get("/v1/workers/{id}", fleet.worker, "Show a worker"),
        _post("/v1/workers/{id}/drain", fleet.drain, "Close a worker to new work"),
        _post("/v1/workers/{id}/resume", fleet.resume, "Open a drained worker again"),
        _get("/v1/status", fleet.status, "Show the fleet in a few numbers"),
        _get("/v1/events", fleet.events, "Follow every change as server-sent events", query=("after",)),
        _get("/v1/hubs", fleet.hubs, "List the hubs on this ledger"),
        _get("/v1/me", fleet.me, "Say whose token this is"),
        _get("/v1/health", fleet.health, "Say that the hub is up"),
        _get("/metrics", fleet.metrics, "Prometheus metrics"),
    ]


def _enrol(enrol: EnrolApi) -> list[Route]:
    return [
        _get("/v1/tokens", enrol.tokens, "List the tokens"),
        _post("/v1/tokens", enrol.create_token, "Create a token", body=NewToken, status=201),
        Route(
            method="DELETE",
            path="/v1/tokens/{id}",
            handler=enrol.revoke_token,
            summary="Revoke a token",
        ),
        _post("/v1/tokens/{id}/rotate", enrol.rotate_token, "Replace a token's secret"),
        _post("/v1/enrol", enrol.enrol, "Exchange a join token for a worker's own", body=NewWorker, status=201),
        _get("/v1/enrol", enrol.seen, "Say how the hub sees this worker"),
        _post("/v1/enrol/renewed", enrol.renewed, "Say that a worker has kept its new token"),
        _post("/v1/leave", enrol.leave, "Give a worker's own token back"),
    ]


def _pull(pull: PullApi, jobs: JobsApi) -> list[Route]:
    one = "/v1/job/{id}"
    return [
        _post("/v1/job/claim", pull.claim, "Claim the next task that fits this machine", body=Claim, also=(204,)),
        _post(f"{one}/heartbeat", pull.heartbeat, "Say that a claimed task still runs", body=Beat),
        _post(f"{one}/complete", pull.complete, "Say that a claimed task is done", body=Completion),
        _post(f"{one}/fail", pull.fail, "Say that a claimed task failed", body=Failure),
        _post(f"{one}/cancel", jobs.cancel, "Cancel any job"),
        _post(f"{one}/requeue", jobs.requeue, "Run any job again"),
    ]


def _models(models: ModelsApi) -> list[Route]:
    one = "/v1/models/{name:path}"
    return [
        _get("/v1/models", models.listing, "List the gateway's models"),
        _get("/v1/models/activity", models.activity, "List the last requests for models"),
        _post("/v1/models/reload", models.reload, "Read the models' configuration again"),
        _post(f"{one}/load", models.load, "Load a model"),
        _post(f"{one}/unload", models.unload, "Unload a model"),
        _post(f"{one}/pin", models.pin, "Keep a model loaded, whoever wants its room"),
        _post(f"{one}/unpin", models.unpin, "Let a model be evicted again"),
    ]


def _manifest(manifest: ManifestApi, sweeps: SweepsApi) -> list[Route]:
    one = "/v1/sweeps/{name:path}"
    return [
        Route(
            method="PUT",
            path="/v1/manifest",
            handler=manifest.apply,
            summary="Make the queue follow a manifest",
            takes="text/plain",
            query=("plan", "replace", "file"),
        ),
        _get("/v1/manifest", manifest.show, "Show the manifest that was applied last"),
        _post("/v1/manifest/reload", manifest.reload, "Read the hub's manifest file again", query=("plan", "replace")),
        _get("/v1/sweeps", sweeps.listing, "List the sweeps"),
        _post(f"{one}/cancel", sweeps.cancel, "Cancel all runs of a sweep"),
        _post(f"{one}/requeue", sweeps.requeue, "Run a sweep again"),
        _get(one, sweeps.show, "Show a sweep and each of its runs", query=("metric",)),
    ]


def _artifacts(artifacts: ArtifactsApi) -> list[Route]:
    path, one = "/v1/model/{sha256}", "/v1/artifacts/{id}"
    upload = "Store an artifact, or a part of it, by its sha256"
    return [
        Route(method="PUT", path=path, handler=artifacts.put, summary=upload, takes=BYTES, status=201, also=(200, 202)),
        # Before the route for GET, which would answer HEAD too.
        Route(method="HEAD", path=path, handler=artifacts.head, summary="Say how much of an artifact is here"),
        _get(path, artifacts.fetch, "Fetch an artifact", query=("direct",), also=(307,)),
        _post(f"{path}/direct", artifacts.ask, "Ask where to bring an artifact", query=("size",), also=(201,)),
        _get("/v1/artifacts", artifacts.listing, "List the artifacts", query=("job", "model", *PAGE)),
        _post(
            "/v1/artifacts/gc",
            artifacts.collect,
            "Remove artifacts that nobody needs",
            query=("older_than_s", "dry_run"),
        ),
        _get(one, artifacts.show, "Show an artifact"),
        _post(f"{one}/verify", artifacts.verify, "Read an artifact again and compare it with its name"),
    ]


def _workers(logs: LogsApi) -> list[Route]:
    checkpoint = "/v1/checkpoints/{sha256}"
    blob = "/v1/snapshots/{sha256}"
    return [
        _post(
            "/v1/tasks/{id}/logs",
            logs.write,
            "Bring a piece of a task's log",
            takes=BYTES,
            query=("attempt", "offset", "gap", "final"),
        ),
        Route(
            method="PUT",
            path=blob,
            handler=logs.put_blob,
            summary="Store bytes by their sha256",
            takes=BYTES,
            also=(200,),
            status=201,
        ),
        _get(blob, logs.get_blob, "Fetch bytes by their sha256", query=("direct",), also=(307,)),
        _post(f"{blob}/direct", logs.ask_for_blob, "Ask where to bring bytes", query=("size",), also=(201,)),
        Route(
            method="PUT",
            path=checkpoint,
            handler=logs.put_checkpoint,
            summary="Store a task's checkpoint",
            takes=BYTES,
            also=(200,),
            status=201,
        ),
        _get(checkpoint, logs.get_checkpoint, "Fetch a task's checkpoint", query=("direct",), also=(307,)),
        _post(
            f"{checkpoint}/direct",
            logs.ask_for_checkpoint,
            "Ask where to bring a task's checkpoint",
            query=("size",),
            also=(201,),
        ),
    ]
