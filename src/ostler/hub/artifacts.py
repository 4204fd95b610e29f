"""Between the artifact store and the rest of the hub: what a worker handed over, and what became of it."""

from ostler.archive.metrics import metrics_of
from ostler.domain.errors import BadInput, NotFound, StoreAway
from ostler.domain.records import ArtifactRecord
from ostler.store.artifacts import ArtifactStore


class Artifacts:
    def __init__(self, store: ArtifactStore) -> None:
        self.store = store

    def brought(self, artifact_id: str, task_id: str) -> ArtifactRecord | None:
        """What can be said of a task's outputs beforehand; None: there are none here of that name. They are touched, or
        they could be taken for nobody's before the commit that names them."""
        if not self.store.has(artifact_id) or not self.store.touch(artifact_id):
            return None
        size = self.store.size(artifact_id)
        return ArtifactRecord(id=artifact_id, task_id=task_id, job_id=task_id.partition(".")[0], size=size)

    def metrics(self, artifact_id: str) -> dict[str, float]:
        """What is found about the task in its outputs, which may be removed meanwhile. Blocks."""
        try:
            with self.store.shelf.open(artifact_id) as bundle:
                return metrics_of(bundle)
        except (NotFound, BadInput, StoreAway):
            return {}
