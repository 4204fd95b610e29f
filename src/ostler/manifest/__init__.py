"""The operator's manifest: TOML in, host policies and job specs out."""

from ostler.manifest.read import Manifest, read
from ostler.manifest.specs import former_job_id, job_id

__all__ = ["Manifest", "former_job_id", "job_id", "read"]
