"""Who may do what: one table, from which routes and sockets take their roles. What is not in it nobody may do.

A route, or a type of message, without a line here does not start a hub; the tests are made from it.
"""

from functools import cache

ROLES = ("viewer", "user", "operator", "worker", "gateway")
"""Those that a token may be made with. `gateway` calls models, and nothing else."""
JOIN = "join"
"""The token of the hub's own machine: it speaks for every worker there is."""
JOIN_ONCE = "join-once"
"""The role of a token that is exchanged, once, for the token of a worker; it opens nothing else."""
EVERYBODY = (*ROLES, JOIN, JOIN_ONCE)
ANYONE = ("anyone",)
"""Without a token, too."""
READERS = ("viewer", "user", "operator")
USERS = ("user", "operator")
OPERATORS = ("operator",)
WORKERS = ("worker", JOIN)
NEWCOMERS = (JOIN_ONCE, JOIN)
CLAIMERS = ("worker", JOIN, "operator")
CALLERS = ("user", "operator", "gateway")
"""Who may call models, on the gateway's own port."""
UPLOADERS = ("user", "operator", "worker", JOIN)

ANY_METHOD = "*"
SOCKET = "SOCKET"
"""In place of a method: a WebSocket."""

Roles = tuple[str, ...]

ROUTES: dict[tuple[str, str], Roles] = {
    # Without a token
    ("GET", "/"): ANYONE,
    ("GET", "/assets/{path:path}"): ANYONE,
    ("GET", "/docs/errors/{name}"): ANYONE,
    ("GET", "/v1/health"): ANYONE,
    ("POST", "/v1/session"): ANYONE,
    # Whoever calls
    ("GET", "/v1/session"): READERS,
    ("DELETE", "/v1/session"): READERS,
    ("GET", "/v1/me"): (*ROLES, JOIN),
    ("GET", "/v1/hubs"): (*READERS, *WORKERS),
    ("GET", "/openapi.json"): READERS,
    # Jobs
    ("POST", "/v1/jobs"): USERS,
    ("GET", "/v1/jobs"): READERS,
    ("GET", "/v1/jobs/{id}"): READERS,
    ("GET", "/v1/jobs/{id}/tasks"): READERS,
    ("GET", "/v1/jobs/{id}/events"): READERS,
    ("GET", "/v1/jobs/{id}/result"): READERS,
    ("POST", "/v1/jobs/{id}/results"): READERS,
    ("GET", "/v1/jobs/{id}/logs"): READERS,
    ("GET", "/v1/jobs/{id}/curves"): READERS,
    ("GET", "/v1/jobs/{id}/why"): READERS,
    ("GET", "/v1/jobs/{id}/estimate"): READERS,
    ("POST", "/v1/jobs/{id}/cancel"): USERS,
    ("POST", "/v1/jobs/{id}/requeue"): USERS,
    ("POST", "/v1/jobs/{id}/priority"): USERS,
    ("GET", "/v1/queue"): READERS,
    ("GET", "/v1/timeline"): READERS,
    ("POST", "/v1/whatif"): READERS,
    # The fleet
    ("GET", "/v1/workers"): READERS,
    ("GET", "/v1/workers/{id}"): READERS,
    ("POST", "/v1/workers/{id}/drain"): OPERATORS,
    ("POST", "/v1/workers/{id}/resume"): OPERATORS,
    ("GET", "/v1/status"): READERS,
    ("GET", "/v1/events"): READERS,
    ("GET", "/metrics"): READERS,
    # Tokens and machines
    ("GET", "/v1/tokens"): OPERATORS,
    ("POST", "/v1/tokens"): OPERATORS,
    ("DELETE", "/v1/tokens/{id}"): OPERATORS,
    ("POST", "/v1/tokens/{id}/rotate"): OPERATORS,
    ("POST", "/v1/enrol"): NEWCOMERS,
    ("GET", "/v1/enrol"): WORKERS,
    ("POST", "/v1/enrol/renewed"): WORKERS,
    ("POST", "/v1/leave"): WORKERS,
    # Machines without a connection
    ("POST", "/v1/job/claim"): CLAIMERS,
    ("POST", "/v1/job/{id}/heartbeat"): CLAIMERS,
    ("POST", "/v1/job/{id}/complete"): CLAIMERS,
    ("POST", "/v1/job/{id}/fail"): CLAIMERS,
    ("POST", "/v1/job/{id}/cancel"): OPERATORS,
    ("POST", "/v1/job/{id}/requeue"): OPERATORS,
    # The manifest
    ("PUT", "/v1/manifest"): OPERATORS,
    ("GET", "/v1/manifest"): READERS,
    ("POST", "/v1/manifest/reload"): OPERATORS,
    ("GET", "/v1/sweeps"): READERS,
    ("GET", "/v1/sweeps/{name:path}"): READERS,
    ("POST", "/v1/sweeps/{name:path}/cancel"): OPERATORS,
    ("POST", "/v1/sweeps/{name:path}/requeue"): OPERATORS,
    # Models
    ("GET", "/v1/models"): READERS,
    ("GET", "/v1/models/activity"): READERS,
    ("POST", "/v1/models/reload"): OPERATORS,
    ("POST", "/v1/models/chat"): USERS,
    ("POST", "/v1/models/{name:path}/load"): USERS,
    ("POST", "/v1/models/{name:path}/unload"): USERS,
    ("POST", "/v1/models/{name:path}/pin"): OPERATORS,
    ("POST", "/v1/models/{name:path}/unpin"): OPERATORS,
    # Bytes
    ("PUT", "/v1/model/{sha256}"): CLAIMERS,
    ("HEAD", "/v1/model/{sha256}"): CLAIMERS,
    ("GET", "/v1/model/{sha256}"): (*READERS, *WORKERS),
    ("POST", "/v1/model/{sha256}/direct"): CLAIMERS,
    ("GET", "/v1/artifacts"): READERS,
    ("GET", "/v1/artifacts/{id}"): READERS,
    ("POST", "/v1/artifacts/{id}/verify"): USERS,
    ("POST", "/v1/artifacts/gc"): OPERATORS,
    ("PUT", "/v1/snapshots/{sha256}"): UPLOADERS,
    ("GET", "/v1/snapshots/{sha256}"): UPLOADERS,
    ("POST", "/v1/snapshots/{sha256}/direct"): UPLOADERS,
    ("PUT", "/v1/checkpoints/{sha256}"): WORKERS,
    ("GET", "/v1/checkpoints/{sha256}"): WORKERS,
    ("POST", "/v1/checkpoints/{sha256}/direct"): WORKERS,
    ("POST", "/v1/tasks/{id}/logs"): WORKERS,
    # Who did what
    ("GET", "/v1/audit"): OPERATORS,
    # Secrets
    ("GET", "/v1/secrets"): USERS,
    ("PUT", "/v1/secrets/{name}"): USERS,
    ("DELETE", "/v1/secrets/{name}"): USERS,
    # Services
    (ANY_METHOD, "/services/{name}/{path:path}"): USERS,
    # Sockets
    (SOCKET, "/services/{name}/{path:path}"): USERS,
    (SOCKET, "/v1/ws/worker"): WORKERS,
    (SOCKET, "/v1/ws/relay/{relay_id}"): WORKERS,
    (SOCKET, "/v1/ws/cli"): READERS,
    (SOCKET, "/v1/jobs/{id}/exec"): USERS,
}

OF_A_STANDBY: dict[tuple[str, str], Roles] = {
    # Whoever comes is told which hub leads.
    (ANY_METHOD, "/{path:path}"): EVERYBODY,
    (SOCKET, "/{path:path}"): EVERYBODY,
}

MESSAGES: dict[str, Roles] = {
    "register": WORKERS,
    "heartbeat": WORKERS,
    "ready_for_work": WORKERS,
    "job_accepted": WORKERS,
    "job_result": WORKERS,
    "service_health": WORKERS,
    "metrics_request": WORKERS,
    "worker_list_request": READERS,
    "worker_show_request": READERS,
}


class NoPermission(LookupError):
    """A route that nobody has said who may call: it gets a line in the table."""


def roles_of(method: str, path: str) -> Roles:
    found = ROUTES.get((method, path)) or OF_A_STANDBY.get((method, path))
    if found is None:
        raise NoPermission(f"{method} {path} has no line in hub/permissions.py, so nobody may call it")
    return found


@cache
def messages_of(role: str) -> frozenset[str]:
    """What a token of this role may say over a socket."""
    return frozenset(name for name, roles in MESSAGES.items() if role in roles)
