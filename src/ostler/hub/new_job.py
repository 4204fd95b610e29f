"""A job as the core is told of it."""

import msgspec

from ostler.core.events import NewJob
from ostler.core.learning.kinds import kind_of
from ostler.domain.job import JobSpec

_encode = msgspec.json.Encoder(order="deterministic").encode


def new_job(spec: JobSpec, *, chosen: bool = True, origin: str = "") -> NewJob:
    """What the core is told of a spec that has its id and its user."""
    return NewJob(
        id=spec.id,
        user=spec.user_id,
        name=spec.name,
        spec=_encode(spec),
        request=spec.request(),
        terms=spec.terms(),
        size=spec.size(),
        depends_on=spec.depends_on,
        snapshot=spec.snapshot(),
        origin=origin,
        sweep=spec.training.sweep if spec.training and origin else "",
        kind=kind_of(spec),
        chosen=chosen,
    )


def one_more(job: NewJob, spec: JobSpec, name: str) -> NewJob:
    """Another one of the same spec: all that follows from that is known, but for what it is called."""
    spec.id = name
    return msgspec.structs.replace(job, id=name, spec=_encode(spec))
