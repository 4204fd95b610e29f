"""The manifest as JSON Schema, for editors: made of the tables that the reader itself goes by."""

from collections.abc import Mapping
from typing import Any

from ostler.manifest.keys import (
    CAPABILITY_KEYS,
    DEFINITIONS,
    HOST_KEYS,
    JOB_KEYS,
    SWEEP_KEYS,
    TOP_KEYS,
    Key,
    Shape,
    shape_of,
)

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The newest that editors of TOML know in full."""

TOLD = {
    "hosts": "What may run on which machine, and how much of it. Hosts that are not named are free.",
    "defaults": "Lies under every job and every sweep.",
    "jobs": "One training run each.",
    "sweeps": "A job for every point of a grid, or of a list.",
    "allow_jobs": "Only these models; empty: all.",
    "deny_jobs": "Not these models.",
    "capability": "Never use more of the machine than this.",
    "name": "What people call it; may hold names in braces, such as {lr}.",
    "model": "What is trained; hosts allow and deny by it, artifacts are filed under it.",
    "mode": "How it is trained.",
    "priority": "Higher goes first.",
    "require_cuda": "One whole NVIDIA GPU, or it waits.",
    "prefer_cuda": "A GPU where there is one; others may have it only after prefer_cuda_grace_s.",
    "prefer_cuda_grace_s": "How long it waits for a GPU that it prefers, in seconds.",
    "min_vram_gib": "Free memory of the GPU, in GiB.",
    "min_ram_gib": "Free memory of the machine, in GiB.",
    "min_cores": "Cores.",
    "allowed_hosts": "Only on these; empty: on all.",
    "denied_hosts": "Not on these.",
    "split_recipe": "How the data is split.",
    "train_hosts": "Whose data it is trained on; the order does not matter.",
    "seed": "Part of what makes it another run.",
    "n_resamples": "How often it is resampled.",
    "hyper": "The hyperparameters.",
    "command": "The program and its arguments, with names in braces; {hyper...} stands for all hyperparameters.",
    "env": "Variables for the program.",
    "max_runtime_hours": "It is stopped after so many hours; 0: 24.",
    "max_attempts": "How often it is started again when its machine is lost.",
    "max_retries": "How often it is started again when it fails.",
    "preemptible": "It gives way to higher priority.",
    "labels": "Only on workers whose labels fit, such as 'zone = eu'.",
    "metric": "By which the runs of a sweep are compared.",
    "goal": "Whether a small or a large metric is the better one.",
    "grid": "A list of values for each hyperparameter; every combination is a job.",
    "list": "The points themselves, one table each.",
}


def schema() -> Shape:
    job, sweep = table(JOB_KEYS), table(JOB_KEYS | SWEEP_KEYS)
    host = table(HOST_KEYS, capability=table(CAPABILITY_KEYS))
    sweep["oneOf"] = [{"required": ["grid"]}, {"required": ["list"]}]
    top = table(
        TOP_KEYS,
        hosts={"type": "object", "additionalProperties": host},
        defaults=job,
        jobs={"type": "array", "items": job},
        sweeps={"type": "array", "items": sweep},
    )
    return {"$schema": DIALECT, "title": "A manifest of Ostler", **top, "definitions": DEFINITIONS}


def table(keys: Mapping[str, Key], **shapes: Shape) -> Shape:
    """A table with these keys and no others; `shapes` for those that are tables themselves."""
    properties: dict[str, Any] = {}
    for name, key in keys.items():
        told = {"description": TOLD[name]} if name in TOLD else {}
        usual = {"default": key.default} if name in JOB_KEYS else {}
        properties[name] = {**told, **(shapes.get(name) or shape_of(key)), **usual}
    return {"type": "object", "properties": properties, "additionalProperties": False}
