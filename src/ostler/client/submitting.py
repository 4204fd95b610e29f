"""What submitit's users write, carried out by a fleet. `ostler.submitit` is the name to import it by."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ostler.client.errors import BadInput
from ostler.client.fleet import Fleet, connect
from ostler.client.http import Document, Hub
from ostler.client.job import outcome_of, wait_for_end
from ostler.client.resources import OPTIONS, Options, nearest, spec_fields
from ostler.domain import states

STATES = {
    states.PENDING: "PENDING",
    states.ASSIGNED: "PENDING",
    states.RUNNING: "RUNNING",
    states.ORPHANED: "RUNNING",
    states.SUCCEEDED: "COMPLETED",
    states.FAILED: "FAILED",
    states.CANCELLED: "CANCELLED",
    states.UNSCHEDULABLE: "FAILED",
}
"""In the words that scripts compare with."""
OWN = "ostler_"
"""How options of Ostler's own are spelt: ostler_priority, ostler_labels."""
OF_OTHERS = ("slurm_", "local_", "debug_")
"""What is said for another cluster is none of ours, as it is none of submitit's there."""
PARAMETERS = ("name", "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "nodes", "tasks_per_node")
OWN_OPTIONS = tuple(option for option in OPTIONS if option != "id")
LENIENT = ("stderr_to_stdout",)
"""So it is anyway: a task has one log."""


class Job:
    """One call. Until its batch is left it has no id, and nothing can be asked of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hub: Hub | None = None
        self._id = ""

    def sent(self, hub: Hub, job_id: str) -> None:
        self._hub, self._id = hub, job_id

    def __repr__(self) -> str:
        return f"<Job {self._id or 'not submitted yet'}>"

    @property
    def job_id(self) -> str:
        self._must_be_sent()
        return self._id

    @property
    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED or CANCELLED."""
        return STATES[self.get_info()["state"]]

    def get_info(self) -> Document:
        """The job as the hub tells it."""
        return self._must_be_sent().job(self._id)

    def done(self, force_check: bool = False) -> bool:
        """The hub is asked each time, `force_check` or not."""
        return self.get_info()["state"] in states.TERMINAL

    def wait(self) -> None:
        self._ended()

    def result(self) -> Any:
        """What the function returned; what it raised is raised here, with the worker's traceback as its cause."""
        return outcome_of(self._must_be_sent(), self._ended()).get()

    def results(self) -> list[Any]:
        """One for each task: there is one."""
        return [self.result()]

    def exception(self) -> BaseException | None:
        return outcome_of(self._must_be_sent(), self._ended()).error

    def stdout(self) -> str | None:
        """Its log so far: a task has one, for both of its streams. None: it has not begun to run."""
        data = b"".join(self._must_be_sent().logs(self._id))
        return data.decode(errors="replace") if data or self.state not in ("PENDING",) else None

    def stderr(self) -> str | None:
        return self.stdout()

    def cancel(self, check: bool = True) -> None:
        self._must_be_sent().cancel(self._id)

    def _must_be_sent(self) -> Hub:
        if self._hub is None:
            raise RuntimeError("this job is not submitted yet: leave the block of `executor.batch()` first")
        return self._hub

    def _ended(self) -> Document:
        hub = self._must_be_sent()
        document = wait_for_end(hub, self._id, None)
        folder = Path(str(self._folder).replace("%j", self._id.partition(".")[0]))
        kept = folder / f"{self._id}_0_log.out"
        if not kept.exists():
            folder.mkdir(parents=True, exist_ok=True)
            kept.write_text(self.stdout() or "")
        return document


class AutoExecutor:
    """`folder` is where the logs of jobs are put when their ends are seen; %j in it is the job's id, or its array's."""

    def __init__(self, folder: str | Path, cluster: str | None = None, *, fleet: Fleet | None = None) -> None:
        if cluster not in (None, "ostler"):
            raise BadInput(f"cluster: {cluster!r} is submitit's own business; this executor's is 'ostler'")
        self.folder = Path(folder).expanduser().absolute()
        common = [folder for folder in (self.folder, *self.folder.parents) if "%j" not in str(folder)]
        common[0].mkdir(parents=True, exist_ok=True)  # where it cannot be, that is told before a job has run
        self.cluster = "ostler"
        self._fleet = fleet or connect()
        self._options: Options = {}
        self._gathered: list[tuple[Job, tuple[Any, ...]]] | None = None

    def update_parameters(self, **parameters: Any) -> None:
        """submitit's own parameters, those for Slurm passed over, and `ostler_…` for whatever `Fleet.submit` takes."""
        resources = dict(self._options.get("resources") or {})
        options: dict[str, Any] = {}
        for name, value in parameters.items():
            if name.startswith(OWN) and name.removeprefix(OWN) in OWN_OPTIONS:
                options[name.removeprefix(OWN)] = value
            elif name in PARAMETERS:
                _take(name, value, resources, options)
            elif not name.startswith(OF_OTHERS) and name not in LENIENT:
                known = (*PARAMETERS, *(OWN + option for option in OWN_OPTIONS))
                raise BadInput(f"update_parameters: unknown parameter {name!r}{nearest(name, known)}")
        resources |= options.pop("resources", None) or {}
        changed: Options = {**self._options, "resources": resources, **options}  # type: ignore[typeddict-item]
        spec_fields(changed, "update_parameters")
        self._options = changed

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Job:
        job = Job(self.folder)
        if self._gathered is not None:
            self._gathered.append((job, (fn, args, kwargs)))
            return job
        job.sent(self._fleet.hub, self._fleet.submit_call(fn, args, kwargs, self._options).id)
        return job

    def map_array(self, fn: Callable[..., Any], *iterables: Iterable[Any]) -> list[Job]:
        """One array job; a job of this list is one task of it."""
        if self._gathered is not None:
            raise RuntimeError("map_array is a batch of its own: call it outside of `executor.batch()`")
        return self._array(fn, list(zip(*iterables, strict=False)), [])

    def submit_array(self, fns: Iterable[Callable[[], Any]]) -> list[Job]:
        return self._array(_call, [(fn, (), {}) for fn in fns], [])

    @contextlib.contextmanager
    def batch(self, allow_implicit_submissions: bool = False) -> Iterator[None]:
        """What is submitted within is sent as one array when the block is left, and not at all if that raises."""
        if self._gathered is not None:
            raise RuntimeError("a batch is open already")
        self._gathered = []
        try:
            yield
            gathered = self._gathered
        finally:
            self._gathered = None
        self._array(_call, [call for _, call in gathered], [job for job, _ in gathered])

    def _array(self, fn: Callable[..., Any], rows: list[tuple[Any, ...]], jobs: list[Job]) -> list[Job]:
        if not rows:
            return []
        columns = [list(column) for column in zip(*rows, strict=True)]
        submitted = self._fleet.submit_map(fn, columns, self._options, True)
        assert submitted is not None
        array, _ = submitted
        jobs = jobs or [Job(self.folder) for _ in rows]
        for index, job in enumerate(jobs):
            job.sent(self._fleet.hub, f"{array.id}.{index}")
        return jobs


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


def _take(name: str, value: Any, resources: dict[str, Any], options: dict[str, Any]) -> None:
    if name == "name":
        options["name"] = value
    elif name == "timeout_min":
        if not isinstance(value, int | float):
            raise BadInput(f"timeout_min: expected a number of minutes, got {value!r}")
        options["max_runtime_hours"] = value / 60
    elif name == "mem_gb":
        resources["memory"] = f"{value}g"
    elif name == "cpus_per_task":
        resources["cpu"] = value
    elif name == "gpus_per_node":
        resources["gpu"] = value
    elif value != 1:
        raise BadInput(f"{name}: a call runs in one process; for several machines there is `ostler submit --nodes`")
