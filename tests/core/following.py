"""Manifests that are edited again and again, and what must have become of each edit."""

from collections.abc import Callable
from typing import Any

from tests.core.core_fleet import CoreFleet, entry

from ostler.core.effects import Followed
from ostler.core.events import Event, ManifestApplied, NewJob
from ostler.domain import states
from ostler.domain.hosts import HostPolicy
from ostler.domain.job import Training

ENTRIES = 5
EDITS: list[dict[str, Any] | None] = [
    None,
    {"priority": 5},
    {"priority": 0},
    {"min_cpu_cores": 1.0},
    {"min_cpu_cores": 6.0, "min_memory_gb": 4.0},
    {"gpu_count": 1, "gpu_backend": "nvidia"},
    {"gpu_count": 0, "gpu_backend": ""},
    {"prefer_cuda": True, "prefer_cuda_grace_seconds": 20.0},
    {"prefer_cuda": True, "prefer_cuda_grace_seconds": 300.0},
    {"prefer_cuda": False},
    {"preemptible": True},
    {"preemptible": False},
    {"allowed_hosts": ["box", "w2"]},
    {"denied_hosts": ["w0", "pi"]},
    {"allowed_hosts": [], "denied_hosts": []},
    {"min_vram_gb": 10.0},
    {"min_vram_gb": 0.0},
    {"labels": ["zone = eu"]},
    {"labels": []},
    {"max_attempts": 0, "max_retries": 1},
    {"scheduling_timeout_seconds": 40.0},
    {"scheduling_timeout_seconds": 0.0},
    {"max_runtime_hours": 0.02},
    {"max_runtime_hours": 0.0},
]
"""None: it is taken out of the file, or put back."""
HOSTS: list[dict[str, HostPolicy]] = [
    {},
    {"w0": HostPolicy(cpu_cores=2.0, allow_jobs=("gbt",)), "box": HostPolicy(vram_gib=12.0)},
    {"box": HostPolicy(deny_jobs=("gbt",)), "w1": HostPolicy(gpu_count=1, ram_gib=6.0)},
    {"pi": HostPolicy(cpu_cores=1.0), "w2": HostPolicy(gpu_count=0), "w1": HostPolicy(vram_gib=4.0)},
]


class Following:
    """A part of the random fleet: see there."""

    core: CoreFleet
    jobs: list[str]
    acknowledged: set[str]
    waiting: list[Event]
    asked: dict[int, Callable[[Any], None]]
    turn: Callable[..., None]

    def __init__(self) -> None:
        self._file: dict[str, dict[str, Any]] = {}
        self._left_out: dict[str, dict[str, Any]] = {}
        self._hosts = HOSTS[0]
        self.applied: dict[str, NewJob] = {}
        """Each job of a manifest as the hub must have it."""

    def apply(self, which: int, edit: int) -> None:
        self._edit(which, edit)
        self.turn(self._manifest())

    def apply_soon(self, which: int, edit: int) -> None:
        self._edit(which, edit)
        self.waiting.append(self._manifest())

    def change_hosts(self, which: int, _: int = 0) -> None:
        self._hosts = HOSTS[which % len(HOSTS)]
        self.turn(self._manifest())

    def _edit(self, which: int, edit: int) -> None:
        name, change = f"m{which % ENTRIES}", EDITS[edit % len(EDITS)]
        if name not in self._file:
            model = Training(model=("gbt", "mlp")[which % 2])
            self._file[name] = self._left_out.pop(name, {"training": model})
        elif change is None:
            self._left_out[name] = self._file.pop(name)
        if change is not None:
            self._file[name] = {**self._file[name], **change}

    def _manifest(self) -> ManifestApplied:
        event = self.core.following(*[entry(name, **spec) for name, spec in self._file.items()], hosts=self._hosts)

        def answered(effect: Any) -> None:
            assert isinstance(effect, Followed), effect
            new = {job.id: job for job in event.jobs}
            for line in effect.lines:
                self._became(line.job_id, line.change, line.state, new.get(line.job_id))

        event.ref += 2_000_000
        self.asked[event.ref] = answered
        return event

    def _became(self, job_id: str, change: str, state: str, new: NewJob | None) -> None:
        assert change != "updated" or state not in states.TERMINAL, f"{job_id} is {state} and was changed"
        if change == "inserted":
            assert job_id not in self.applied
            self.jobs.append(job_id)
            self.acknowledged.add(job_id)
        if new is not None and change in ("inserted", "updated"):
            self.applied[job_id] = new
        elif new is not None and state not in states.TERMINAL:
            assert new.spec == self.applied[job_id].spec, f"{job_id} differs and is {change}"

    def look_at_manifest(self) -> None:
        """The row of each job is that of the manifest that was applied last."""
        rows = self.core.ledger.jobs(self.applied)
        for job_id, new in self.applied.items():
            row = rows[job_id]
            assert (row.spec, row.request, row.terms, row.name) == (new.spec, new.request, new.terms, new.name), job_id
        assert self.core.ledger.manifest() is not None or not self.applied
