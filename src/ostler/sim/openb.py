"""A public trace of a GPU cluster on the real core: how much of its GPUs is allocated when so much has been asked for.

Two CSV files: machines (`sn, cpu_milli, memory_mib, gpu, model`) and pods (`name, cpu_milli, memory_mib, num_gpu,
gpu_milli, gpu_spec` and more that is not used). Machines without GPUs are left out. The pods arrive one by one in an
order that a seed fixes, and again until 130 % of the cluster's GPUs have been asked for; each is tried once.
"""

import csv
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ostler.core.effects import AssignTask, Effect
from ostler.core.events import (
    CancelRequested,
    JobsSubmitted,
    NewJob,
    TaskAccepted,
    TaskEnded,
    WorkerBeat,
    WorkerRegistered,
)
from ostler.core.fleet import Fleet
from ostler.core.persist import take_changes
from ostler.core.placing.place import settle
from ostler.core.step import step
from ostler.domain.errors import BadInput
from ostler.domain.job import JobSpec, Terms
from ostler.domain.resources import Request
from ostler.domain.worker import Capabilities, Slots

WHOLE = 1000
MARKS = (100, 130)
"""Per cent of the cluster's GPUs that have been asked for when the allocation is looked at."""
SLOTS = 1_000_000
TOLD_EVERY = 2000
"""Pods after which it is said how far a run is."""


class Node(msgspec.Struct, frozen=True):
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str = ""


class Pod(msgspec.Struct, frozen=True):
    name: str
    request: Request
    gpu_milli: int
    """All that it asks for, in thousandths of GPUs."""
    lifetime_s: float = 0.0


class Outcome(msgspec.Struct, kw_only=True):
    """Of one run. Allocations are per cent of the cluster's GPUs."""

    seed: int
    nodes: int
    gpus: int
    pods: int
    alloc_at_100: float
    alloc_at_130: float
    failed: int
    decision_us_p50: float
    decision_us_p99: float
    decision_us_mean: float


def read_nodes(path: Path) -> list[Node]:
    """The machines that have GPUs."""
    nodes = []
    for line, row in _rows(path, ("sn", "cpu_milli", "memory_mib", "gpu")):
        number = _numbers(path, line, row)
        gpus = number("gpu")
        if gpus:
            nodes.append(Node(row["sn"], number("cpu_milli"), number("memory_mib"), gpus, row.get("model", "")))
    if not nodes:
        raise BadInput(f"{path}: no machine in it has a GPU; give a list of nodes with a column gpu above 0")
    return nodes


def read_pods(path: Path) -> list[Pod]:
    pods = [
        _pod(path, line, row) for line, row in _rows(path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
    ]
    if not any(pod.gpu_milli for pod in pods):
        raise BadInput(f"{path}: no pod in it asks for a GPU; give a list of pods with a column num_gpu above 0")
    return pods


def _pod(path: Path, line: int, row: dict[str, str]) -> Pod:
    number = _numbers(path, line, row)
    gpus, part = number("num_gpu"), number("gpu_milli") or WHOLE
    if part > WHOLE or (gpus > 1 and part < WHOLE):
        raise BadInput(f"{path}, line {line}: gpu_milli {part} of {gpus} GPUs; give 1000, or less with one GPU")
    is_share = gpus == 1 and part < WHOLE
    spec = JobSpec(
        gpu_count=0 if is_share else gpus,
        gpu_share=part / WHOLE if is_share else 0.0,
        gpu_type=row.get("gpu_spec", "") if gpus else "",
        min_cpu_cores=number("cpu_milli") / 1000,
        min_memory_gb=number("memory_mib") / 1024,
    )
    lived = number("deletion_time") - number("creation_time")
    return Pod(row["name"], spec.request(), gpus * part, float(max(0, lived)))


def _rows(path: Path, required: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        missing = [name for name in required if name not in (reader.fieldnames or ())]
        if missing:
            raise BadInput(
                f"{path}, line 1: there is no column {', '.join(missing)}; name the columns in the first line"
            )
        try:
            for row in reader:
                yield (
                    reader.line_num,
                    {key: (value or "").strip() for key, value in row.items() if isinstance(key, str)},
                )
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadInput(f"{path}, line {reader.line_num}: cannot be read as CSV: {error}") from None


def _numbers(path: Path, line: int, row: dict[str, str]) -> Callable[[str], int]:
    """Whole numbers of a row by their column; one that is empty or not there is 0."""

    def number(column: str) -> int:
        text = row.get(column, "")
        try:
            value = float(text or 0)
            if 0 <= value <= 1e12:
                return int(value)
        except ValueError:
            pass
        raise BadInput(f"{path}, line {line}: {column} is {text!r}; write a number, 0 or more")

    return number


def arrivals(pods: list[Pod], gpus: int, seed: int) -> list[Pod]:
    """By name, shuffled, and then drawn again until enough has been asked for."""
    chance = random.Random(seed)
    by_name = sorted(pods, key=lambda pod: pod.name)
    order = list(by_name)
    chance.shuffle(order)
    asked = sum(pod.gpu_milli for pod in order)
    while asked < MARKS[-1] * 10 * gpus:
        order.append(chance.choice(by_name))
        asked += order[-1].gpu_milli
    return order


class Cluster:
    """The real core with these machines."""

    def __init__(self, nodes: list[Node]) -> None:
        numbers = itertools.count(1)
        self.fleet = Fleet(lambda: f"a{next(numbers)}")
        self.now = 0.0
        self.gpus = sum(node.gpus for node in nodes)
        for session, node in enumerate(nodes, 1):
            has = Capabilities(
                gpu_backend="nvidia",
                gpu_type=node.model,
                gpu_count=node.gpus,
                vram_gb=node.gpus * WHOLE / 1024,
                cpu_count=node.cpu_milli / 1000,
                memory_gb=node.memory_mib / 1024,
            )
            step(self.fleet, WorkerRegistered(worker_id=node.name, session=session, capabilities=has), self.now)
            beat = WorkerBeat(worker_id=node.name, session=session, slots=Slots(batch_total=SLOTS))
            step(self.fleet, beat, self.now)
        take_changes(self.fleet, self.now)

    def submit(self, job_id: str, request: Request) -> list[Effect]:
        new = NewJob(id=job_id, user="openb", name="", spec=b"{}", request=request, terms=Terms(max_runtime_s=0.0))
        return step(self.fleet, JobsSubmitted(ref=0, jobs=[new]), self.now) + settle(self.fleet, self.now)

    def accept(self, effects: list[Effect]) -> list[AssignTask]:
        """The machines take what they are given."""
        given = [effect for effect in effects if isinstance(effect, AssignTask)]
        for one in given:
            said = TaskAccepted(worker_id=one.worker_id, session=one.session, task_id=one.task_id, attempt=one.attempt)
            step(self.fleet, said, self.now)
        take_changes(self.fleet, self.now)
        return given

    def end(self, one: AssignTask) -> list[Effect]:
        said = TaskEnded(
            worker_id=one.worker_id,
            session=one.session,
            task_id=one.task_id,
            attempt=one.attempt,
            state="succeeded",
        )
        return step(self.fleet, said, self.now) + settle(self.fleet, self.now)

    def cancel(self, job_id: str) -> None:
        step(self.fleet, CancelRequested(ref=0, job_id=job_id), self.now)
        take_changes(self.fleet, self.now)


Progress = Callable[[int, int], None]


def run(nodes: list[Node], pods: list[Pod], seed: int, progress: Progress | None = None) -> Outcome:
    return run_on(Cluster(nodes), pods, seed, progress)


def run_on(cluster: Cluster, pods: list[Pod], seed: int, progress: Progress | None = None) -> Outcome:
    order = arrivals(pods, cluster.gpus, seed)
    asked = allocated = failed = 0
    took: list[float] = []
    marks: dict[int, float] = {}
    for number, pod in enumerate(order):
        job_id = f"p{number}"
        begun = time.perf_counter()
        effects = cluster.submit(job_id, pod.request)
        took.append(time.perf_counter() - begun)
        asked += pod.gpu_milli
        if cluster.accept(effects):
            allocated += pod.gpu_milli
        else:
            failed += 1
            cluster.cancel(job_id)
        for mark in MARKS:
            if mark not in marks and asked >= mark * 10 * cluster.gpus:
                marks[mark] = allocated / (10 * cluster.gpus)
        if len(marks) == len(MARKS):
            break
        if progress is not None and number and number % TOLD_EVERY == 0:
            progress(number, len(order))
    took.sort()
    return Outcome(
        seed=seed,
        nodes=len(cluster.fleet.workers),
        gpus=cluster.gpus,
        pods=len(took),
        alloc_at_100=round(marks[100], 3),
        alloc_at_130=round(marks[130], 3),
        failed=failed,
        decision_us_p50=round(1e6 * took[len(took) // 2], 1),
        decision_us_p99=round(1e6 * took[len(took) * 99 // 100], 1),
        decision_us_mean=round(1e6 * sum(took) / len(took), 1),
    )
