"""What is there for whoever looks, and decides nothing: what jobs take and tell over time, and talks with models."""

from ostler.hub.api import table
from ostler.hub.api.curves import CurvesApi
from ostler.hub.api.jobs import JobsApi
from ostler.hub.api.routes import Route
from ostler.hub.gateway.playground import Playground
from ostler.hub.logs import Logs
from ostler.hub.samples import Samples
from ostler.hub.sessions import Sessions
from ostler.store.artifacts import ArtifactStore


def looking(
    sessions: Sessions, jobs: JobsApi, logs: Logs, artifacts: ArtifactStore, playground: Playground
) -> list[Route]:
    samples = Samples()
    sessions.sampled = samples.heard
    return table.looking(CurvesApi(jobs, samples, logs, artifacts), playground)
