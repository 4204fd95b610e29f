"""From the options of `submit` and `run` to a job's spec. Values are the hub's to judge; here only units are read."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ostler.domain.errors import BadInput, Unreadable
from ostler.domain.quantities import AUTO, parse_duration, parse_size

GIB = 1024**3
NEEDS = "What it needs"
RUNS = "How it runs"
SPEC = "Who and what it is"
MANIFEST_TABLES = {"jobs", "sweeps", "hosts", "defaults"}


def _option(name: str, told: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=told, rich_help_panel=panel, metavar=metavar, show_default=False)


@dataclasses.dataclass(frozen=True)
class SpecOptions:
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- CMD...", help="The program and its arguments.", show_default=False),
    ] = None
    cpus: Annotated[float | None, _option("--cpus", "CPU cores; parts of one too: 0.5.", NEEDS, "N")] = None
    memory: Annotated[
        str | None, _option("--memory", "Memory: 512m, 8g, 1.5TiB; auto: what its like took.", NEEDS, "SIZE")
    ] = None
    gpus: Annotated[int | None, _option("--gpus", "Whole GPUs.", NEEDS, "N")] = None
    gpu_type: Annotated[
        str | None, _option("--gpu-type", "Only GPUs of this type: A100, A100|H100.", NEEDS, "TYPE")
    ] = None
    gpu_share: Annotated[
        float | None, _option("--gpu-share", "A part of one GPU, whatever its size: 0.5.", NEEDS, "PART")
    ] = None
    backend: Annotated[
        str | None, _option("--backend", "nvidia, metal, vulkan, rocm, tpu or cpu; any if not given.", NEEDS, "NAME")
    ] = None
    vram: Annotated[
        str | None,
        _option(
            "--vram",
            "GPU memory, all granted GPUs together; without --gpus: a share of one GPU. auto: what its like took.",
            NEEDS,
            "SIZE",
        ),
    ] = None
    nodes: Annotated[int | None, _option("--nodes", "Machines, all at once.", NEEDS, "N")] = None
    where: Annotated[
        list[str] | None,
        _option("--where", "Only workers whose label fits: 'zone = eu', 'driver >= 550'. Repeatable.", NEEDS, "RULE"),
    ] = None
    prefer: Annotated[list[str] | None, _option("--prefer", "Like --where, as a wish. Repeatable.", NEEDS, "RULE")] = (
        None
    )

    name: Annotated[
        str | None, _option("--name", "A name; it stands for the newest job of that name.", SPEC, "NAME")
    ] = None
    id: Annotated[
        str | None, _option("--id", "The job's id; given again with the same spec: the same job.", SPEC, "ID")
    ] = None
    user: Annotated[str | None, _option("--user", "Whose job it is (operators only).", SPEC, "USER")] = None
    file: Annotated[
        Path | None, _option("--file", "A spec in JSON or TOML; options given here go before it.", SPEC, "SPEC")
    ] = None
    template: Annotated[
        str | None, _option("--template", "The hub's template that this is laid over.", SPEC, "NAME")
    ] = None

    tier: Annotated[
        str | None, _option("--tier", "fine_tuning, training, evaluation or data_processing.", RUNS, "TIER")
    ] = None
    priority: Annotated[int | None, _option("--priority", "Higher goes first; 0 if not given.", RUNS, "N")] = None
    schedule_timeout: Annotated[
        str | None, _option("--schedule-timeout", "Give up if not placed within: 90s, 5m, 2h.", RUNS, "TIME")
    ] = None
    max_runtime: Annotated[str | None, _option("--max-runtime", "Stop it after: 30m, 2h, 1d.", RUNS, "TIME")] = None
    retries: Annotated[int | None, _option("--retries", "Run again after a failure, so often.", RUNS, "N")] = None
    array: Annotated[
        int | None, _option("--array", "N tasks of it; each finds its number in $OSTLER_INDEX.", RUNS, "N")
    ] = None
    after: Annotated[list[str] | None, _option("--after", "Start after these succeeded. Repeatable.", RUNS, "JOB")] = (
        None
    )
    env: Annotated[
        list[str] | None,
        _option("--env", "A variable for the program; K alone takes the value it has here. Repeatable.", RUNS, "K=V"),
    ] = None
    secret: Annotated[
        list[str] | None,
        _option(
            "--secret", "A secret, as a file in $OSTLER_SECRETS; :K also as a variable. Repeatable.", RUNS, "NAME[:K]"
        ),
    ] = None
    notify: Annotated[
        list[str] | None,
        _option(
            "--notify",
            "Tell of its end: a webhook's address, ntfy:TOPIC, or a target of the hub's. Repeatable.",
            RUNS,
            "WHOM",
        ),
    ] = None
    notify_on: Annotated[
        list[str] | None,
        _option("--notify-on", "Only of: end, failed, lost, preempted. Repeatable.", RUNS, "EVENT"),
    ] = None
    service: Annotated[bool, _option("--service", "A service: without end, in a service slot.", RUNS)] = False
    on_oom: Annotated[
        str | None, _option("--on-oom", "larger: out of GPU memory, run again on a larger GPU.", RUNS, "RULE")
    ] = None
    preemptible: Annotated[bool, _option("--preemptible", "May be displaced by more urgent work.", RUNS)] = False
    snapshot: Annotated[
        Path | None, _option("--snapshot", "Start in a copy of this folder, as git would take it.", RUNS, "DIR")
    ] = None
    output: Annotated[list[str] | None, _option("--output", "Keep this path as output. Repeatable.", RUNS, "PATH")] = (
        None
    )


def _as_given(value: Any, option: str) -> Any:
    return value


def _gib(value: str, option: str) -> float:
    return parse_size(value, option) / GIB


def _gib_or_auto(value: str, option: str) -> float | str:
    return AUTO if value.strip().lower() == AUTO else _gib(value, option)


def _hours(value: str, option: str) -> float:
    return parse_duration(value, option) / 3600


def _service(value: bool, option: str) -> str:
    return "service"


FIELDS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "command": ("command", _as_given),
    "cpus": ("min_cpu_cores", _as_given),
    "memory": ("min_memory_gb", _gib_or_auto),
    "gpus": ("gpu_count", _as_given),
    "gpu_type": ("gpu_type", _as_given),
    "gpu_share": ("gpu_share", _as_given),
    "backend": ("gpu_backend", _as_given),
    "vram": ("min_vram_gb", _gib_or_auto),
    "nodes": ("node_count", _as_given),
    "where": ("labels", _as_given),
    "prefer": ("prefer_labels", _as_given),
    "name": ("name", _as_given),
    "id": ("id", _as_given),
    "user": ("user_id", _as_given),
    "template": ("template", _as_given),
    "tier": ("job_tier", _as_given),
    "priority": ("priority", _as_given),
    "schedule_timeout": ("scheduling_timeout_seconds", parse_duration),
    "max_runtime": ("max_runtime_hours", _hours),
    "retries": ("max_retries", _as_given),
    "array": ("array", _as_given),
    "after": ("depends_on", _as_given),
    "service": ("type", _service),
    "on_oom": ("on_oom", _as_given),
    "preemptible": ("preemptible", _as_given),
    "output": ("outputs", _as_given),
    "secret": ("secrets", _as_given),
    "notify": ("notify", _as_given),
    "notify_on": ("notify_on", _as_given),
}
"""For each option its field in the spec, and how its text becomes the value there."""


OTHER_OPTIONS = {"env": "--env", "snapshot_id": "--snapshot", "snapshot": "--snapshot"}


def option_of(field: str) -> str | None:
    """The option that sets this field of a spec, for those who typed the option and never saw the field."""
    if field == "command":
        return "the command"
    found = [option for option, (target, _) in FIELDS.items() if target == field]
    return "--" + found[0].replace("_", "-") if found else OTHER_OPTIONS.get(field)


def build_spec(given: SpecOptions) -> dict[str, Any]:
    """The spec as JSON data, with something to run."""
    spec = spec_fields(given)
    if not spec.get("command") and not spec.get("template"):
        from ostler.domain.job import unknown_fields

        if given.file and (unknown := unknown_fields(spec)):
            raise BadInput(f"--file: {given.file}: {'; '.join(unknown)}", [("file", one) for one in unknown])
        raise BadInput(
            "there is no command to run; put it after two dashes, as in: ostler submit -- python3 train.py",
            [("command", "is missing")],
        )
    return spec


def spec_fields(given: SpecOptions) -> dict[str, Any]:
    """That of --file, with what the options say laid over it. Lists and variables add up."""
    spec = read_spec_file(given.file) if given.file else {}
    for option, (field, read) in FIELDS.items():
        value = getattr(given, option)
        if value is None or value is False or value == []:
            continue
        value = read(value, "--" + option.replace("_", "-"))
        spec[field] = [*_as_list(spec.get(field), field), *value] if _adds_up(field, value) else value
    if given.env:
        spec["env"] = {**_as_table(spec.get("env")), **dict(_variable(text) for text in given.env)}
    return spec


def _adds_up(field: str, value: Any) -> bool:
    return isinstance(value, list) and field != "command"


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise BadInput(f"--env: {text!r} has no name; write it like RATE=0.1", [("env", "no name")])
    if equals:
        return name, value
    if name not in os.environ:
        raise BadInput(f"--env: {name} is not set here; write --env {name}=VALUE", [("env", f"{name} is not set")])
    return name, os.environ[name]


def left_behind(command: Sequence[str]) -> str | None:
    """The first argument that names a file of the folder we are in, which a task does not find in its own. A program
    without a slash in its name is one of the worker's."""
    paths = [word for place, word in enumerate(command) if place or os.sep in word]
    return next((path for path in paths if not os.path.isabs(path) and os.path.isfile(path)), None)


def read_spec_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--file: {path} cannot be read: {error.strerror}", [("file", "cannot be read")]) from None
    except UnicodeDecodeError:
        raise Unreadable(f"--file: {path} is not text in UTF-8", [("file", "not UTF-8")]) from None
    spec = _parse(text, path)
    if not isinstance(spec, dict):
        raise BadInput(f"--file: {path} must hold one spec, an object with names like 'command'", [("file", "no spec")])
    if MANIFEST_TABLES & spec.keys():
        raise BadInput(f"--file: {path} is a manifest; `ostler apply {path}` is for those", [("file", "a manifest")])
    return spec


def _parse(text: str, path: Path) -> Any:
    """By the file's suffix; without a telling one JSON is tried where it looks like JSON."""
    import json
    import tomllib

    is_json = path.suffix.lower() == ".json" or (path.suffix.lower() != ".toml" and text.lstrip()[:1] in ("{", "["))
    try:
        return json.loads(text) if is_json else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        kind = "JSON" if is_json else "TOML"
        raise Unreadable(f"--file: {path} is not {kind}: {error}", [("file", f"not {kind}")]) from None


def _as_list(value: Any, field: str) -> list[Any]:
    if value is None or isinstance(value, list):
        return value or []
    raise BadInput(f"--file: {field} must be a list", [(field, "must be a list")])


def _as_table(value: Any) -> dict[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise BadInput("--file: env must be a table of names and values", [("env", "must be a table")])
