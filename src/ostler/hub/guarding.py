"""The audit and the secrets, wired to the hub."""

from collections.abc import Callable
from pathlib import Path

from ostler.hub.api import table
from ostler.hub.api.audit import AuditApi
from ostler.hub.api.jobs import JobsApi
from ostler.hub.api.routes import Route
from ostler.hub.api.secrets import SecretsApi
from ostler.hub.loop import Loop
from ostler.hub.secrets import SCOPE, Secrets
from ostler.hub.sessions import Sessions
from ostler.hub.web.gate import Web


def guard(
    routes: list[Route], loop: Loop, jobs: JobsApi, sessions: Sessions, web: Web, store: Path, wall: Callable[[], float]
) -> None:
    """More routes; and from here on what all of them do is noted, and whom they refuse."""
    web.refused, sessions.refused = loop.audit.turned_away, loop.audit.refused
    secrets = Secrets(store, loop.ledger.kept(SCOPE), wall)
    jobs.check_secrets, sessions.secrets = secrets.check, secrets.given
    routes += table.guarding(AuditApi(loop), SecretsApi(loop, secrets))
    loop.audit.watch(routes)
