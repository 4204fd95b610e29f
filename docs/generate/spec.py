"""A job's spec, field by field, from the struct that decodes it; and what its tasks find."""

import ast
import inspect
import textwrap
import typing
from itertools import pairwise
from typing import Any

import msgspec
from docs.generate.markdown import code, page, shown, table

from ostler.cli.spec import option_of
from ostler.domain import job
from ostler.domain.job import HealthCheck, JobSpec, Training
from ostler.domain.resources import BACKENDS, POOLS

SECTIONS: dict[type, str] = {HealthCheck: "health_check", Training: "training"}
INTRO = f"""A job is submitted as this document: `POST /v1/jobs`, `ostler submit --file SPEC` (JSON or TOML), or made from the options of
[ostler submit](commands.md#ostler-submit). Only `command` is needed. An unknown field is an error that names the nearest one. A spec has at
most {job.MAX_SPEC_BYTES // 1024} KiB.

    {{"command": ["python", "train.py"], "gpu_count": 1, "min_vram_gb": 16, "name": "mlp"}}
"""
MEANING = {
    "id": "the job's id, if the client chooses it: letters, digits, `_` and `-`. The same id with the same spec is the same job",
    "name": "what people call it; stands for the newest job of that name",
    "type": "`batch` ends, `service` is kept up; `model` is the gateway's own",
    "job_tier": f"{', '.join(code(one) for one in job.TIERS)}: the order among equal priorities, and the grace of orphans",
    "slot_pool": f"which slots it takes: {', '.join(code(one) for one in POOLS)}; if left out, by its type",
    "user_id": "whose job it is; operators only",
    "gpu_count": "whole GPUs, for itself",
    "gpu_type": "only GPUs of this [type](../concepts.md#gpu-types), or of this full name; several with `|` between them",
    "gpu_backend": ", ".join(code(one) for one in BACKENDS) + "; any if left out",
    "min_vram_gb": 'GPU memory, all granted GPUs together; without `gpu_count` a share of one. `"auto"`: what its like took',
    "min_cpu_cores": "cores; parts of one too",
    "min_memory_gb": 'memory; `"auto"`: what its like took',
    "first_memory_gb": "the same for memory",
    "node_count": "machines, all at once: a gang",
    "max_runtime_hours": f"its budget, all attempts together; 0: {job.DEFAULT_RUNTIME_HOURS:g} h, at most "
    f"{job.MAX_RUNTIME_HOURS:g}. A service has none unless it is given",
    "command": "the program and its arguments; no shell",
    "env": "variables; a value that is a secret belongs into `secrets`",
    "prolog": "runs before the command; if it fails, the command is not run",
    "epilog": "runs after it, however that ended",
    "snapshot_id": "the sha256 of a folder's archive, which becomes the working directory; or a label of your own",
    "snapshot_sha": "that sha256, where `snapshot_id` is a label",
    "health_check": "of a service; see below",
    "metadata": "whatever the submitter likes; kept and shown",
    "metadata_json": "more metadata, from clients whose `metadata` holds strings only; becomes part of `metadata`",
    "priority": "higher goes first",
    "labels": "only on workers whose [labels](../concepts.md#labels) fit: `zone = eu`, `driver >= 550`",
    "prefer_labels": "the same as a wish",
    "scheduling_timeout_seconds": "ends as `unschedulable` if it was not placed by then; 0: it waits",
    "max_attempts": "so often it may be lost with its machine",
    "max_retries": "so often it runs again after it failed by itself",
    "depends_on": "jobs that must have succeeded before it may start",
    "outputs": "paths in its working directory that go into the artifact beside `$OSTLER_OUT`",
    "array": "so many tasks, each with its own `$OSTLER_INDEX`",
    "preemptible": "more urgent work may take its room; that costs it nothing but time",
    "on_lost_contact": '`"stop"`: its worker stops it when it cannot reach the hub, so that it never runs twice at once',
    "notify_on": "of what: `end`, `failed`, `lost`, `preempted`; if left out, of all",
    "template": "what `ostler.toml` says under `[templates.NAME]` lies under this spec",
    "training": "what a training run is about; see below",
    "allowed_hosts": "only on these machines, by name",
    "denied_hosts": "not on these",
    "prefer_cuda": "one NVIDIA GPU where there is one; others may have it after the grace",
    "prefer_cuda_grace_seconds": "how long it waits for that",
    "liveness": "a path that must answer, or the service is stopped and starts again",
    "readiness": "a path that must answer before calls are sent to it",
    "interval_secs": "how often both are asked",
    "model": "what is trained; part of the job's id",
    "mode": "how; part of the id",
    "hyper": "the hyperparameters; part of the id",
    "split_recipe": "how the data is split; part of the id",
    "train_hosts": "whose data; part of the id",
    "seed": "part of the id",
    "n_resamples": "for intervals of the metrics",
    "goal": '`"min"` or `"max"`',
}
VARIABLES = {
    "OSTLER_JOB_ID": "the job's id",
    "OSTLER_TASK_ID": "the task's: the job's, or `ID.N` in an array or a gang",
    "OSTLER_ATTEMPT": "this attempt's",
    "OSTLER_INDEX": "the task's number in an array, from 0",
    "OSTLER_OUT": "a folder; what is left there becomes the artifact",
    "OSTLER_CHECKPOINT": "a folder that is kept across attempts, on whichever machine they are",
    "OSTLER_HUB": "the hub's address",
    "OSTLER_CA": "by what that is known, where it speaks TLS",
    "OSTLER_PORT": "of a service or a model: where it must listen; `{port}` in the command is the same",
    "OSTLER_SECRETS": "a folder in memory with a file for each of the job's secrets",
    "CUDA_VISIBLE_DEVICES": "its GPUs, by UUID where that is known; none for a task without (`HIP_VISIBLE_DEVICES` on ROCm)",
    "RANK": "its number in a gang (`NODE_RANK` too)",
    "WORLD_SIZE": "how many a gang has (`NNODES` too)",
    "LOCAL_RANK": "always 0: one process for each machine",
    "MASTER_ADDR": "where the first of a gang listens",
    "MASTER_PORT": "on which port",
    "OMP_NUM_THREADS": "the cores that were asked for, if any were",
    "PYTHONUNBUFFERED": "1, so that logs come as they are written",
}
FOUND = """## What a task finds

It starts in a working directory of its own (the snapshot's copy, if there is one), as the leader of its own process group, with the worker's
environment less what looks like a secret, then `env`, and:
"""


def spec() -> str:
    return page(
        "The job's spec",
        INTRO,
        _fields(JobSpec),
        "## health_check\n",
        _fields(HealthCheck),
        "## training\n",
        _fields(Training),
        FOUND,
        table(("variable", "value"), [(code(name), told) for name, told in VARIABLES.items()]),
        "To end a task, SIGTERM goes to all of its processes, and SIGKILL after its grace of ten seconds.\n",
    )


def _fields(kind: type[msgspec.Struct]) -> str:
    said = docstrings(kind)
    rows = [
        (
            code(field.name),
            _type(field.type),
            shown(default_of(field)),
            _option(kind, field.name),
            _meaning(field.name, said),
        )
        for field in msgspec.structs.fields(kind)
    ]
    return table(("field", "type", "if left out", "option", "meaning"), rows)


def _meaning(name: str, said: dict[str, str]) -> str:
    told = MEANING.get(name) or said.get(name)
    if not told:
        raise SystemExit(f"reference: {name} has no meaning; give it a docstring, or a line in docs/generate/spec.py")
    return told.rstrip(".")


def _option(kind: type, name: str) -> str:
    found = option_of(name) if kind is JobSpec else None
    return code(found) if found and found.startswith("--") else ""


def default_of(field: Any) -> object:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None


def _type(kind: Any) -> str:
    """As it is spelled in JSON."""
    if typing.get_origin(kind) is typing.Annotated:
        return _type(typing.get_args(kind)[0])
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "object", list: "list"}
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return " or ".join(f'"{one}"' for one in typing.get_args(kind))
    if origin is list:
        return f"list of {_type(typing.get_args(kind)[0])}"
    if origin is dict:
        of = typing.get_args(kind)[1]
        return "object" if of is Any else f"object of {_type(of)}"
    if origin is not None:
        return " or ".join(_type(one) for one in typing.get_args(kind) if one is not type(None))
    return names[kind] if kind in names else f"[an object](#{SECTIONS[kind]})"


def docstrings(kind: type) -> dict[str, str]:
    """The text below each field, where there is one."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, after in pairwise(body.body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = " ".join(said.split())
    return found
