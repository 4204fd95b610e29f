"""Machines on a terminal: the list, one of them, and the fleet on one screen."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ostler.cli.render.columns import Columns
from ostler.cli.render.manifest import manifest_failures, manifest_progress
from ostler.cli.render.models import first_line
from ostler.cli.render.models import state_of as model_state
from ostler.cli.render.parts import bar, facts, heading, indented, plain, quiet, state_text
from ostler.cli.render.sweeps import sweep_table
from ostler.cli.render.words import amount, clean, count, epoch, gib, moment, needs, part_of, since, span, titled
from ostler.domain import states
from ostler.domain.worker import FACTS

Document = dict[str, Any]
Names = dict[str, str]
MOST_LISTED = 30
"""Tasks on a worker's own screen; --json has all."""
MOST_SWEEPS = 10
MOST_MACHINES, MOST_MODELS, MOST_NAMED = 20, 8, 3
"""On the screen of the whole fleet."""
REMOVED = {"jobs": "job", "logs": "log", "artifacts": "artifact"}
MOST_TASKS = 8
"""Lines about one worker on the screen of the whole fleet."""


def worker_table(workers: list[Document], now: float | None = None) -> RenderableType:
    if not workers:
        return quiet("no workers; start one with: ostler worker --hub URL")
    columns = ["worker", "state", "gpus held", "cores free", "memory free", "tasks", "seen", "labels"]
    grid = Columns(*columns, cut={"worker": 10, "labels": 12}, drop=("labels", "seen", "tasks"))
    for worker in workers:
        free = worker.get("free") or {}
        grid.add(
            plain(worker["id"]),
            worker_state(worker),
            gpus_line(worker),
            f"{amount(free.get('cores', 0))} of {amount(worker.get('cpu_count', 0))}",
            part_of(free.get("memory_gb", 0), worker.get("memory_gb", 0)),
            str(worker.get("active_jobs", 0)),
            since(worker.get("last_contact"), now),
            plain(_own_labels(worker)),
        )
    return grid


def worker_state(worker: Document) -> Text:
    """Offline before draining before the rest: what keeps it from taking work is what matters."""
    if worker["status"] == "offline":
        return state_text("offline")
    if worker.get("draining"):
        return state_text("draining")
    return state_text(worker["status"], "cooling down" if worker.get("cooling") else "")


def gpus_line(worker: Document) -> Text:
    """'▪▪▫▫ 2 of 4 A100 80 GiB free'."""
    devices = worker.get("devices") or []
    if not devices:
        return plain("–" if worker.get("backend") in (None, "", "cpu") else worker["backend"])
    held = sum(1 for device in devices if device.get("held_by"))
    line = bar(held, len(devices))
    line.append(f"{' ' if line else ''}{held} of {len(devices)} {_kind(devices)}")
    return line


def _kind(devices: list[Document]) -> str:
    kinds = sorted({(clean(device.get("name") or "GPU"), device.get("vram_gb") or 0) for device in devices})
    if len(kinds) > 1:
        return "mixed GPUs"
    name, vram = kinds[0]
    return f"{name} {gib(vram)}" if vram else name


def _own_labels(worker: Document) -> str:
    """Labels that somebody gave; the well-known facts would fill every row with the same words."""
    labels = {name: value for name, value in (worker.get("labels") or {}).items() if name not in FACTS}
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def worker_screen(worker: Document, names: Names, now: float | None = None) -> RenderableType:
    parts: list[RenderableType] = [heading(worker["id"]) + Text("  ") + worker_state(worker), Text()]
    parts.append(indented(facts(_worker_facts(worker, now))))
    if worker.get("devices"):
        parts += [Text(), heading("GPUs"), indented(_device_table(worker["devices"], names))]
    if jobs := worker.get("jobs"):
        parts += [Text(), heading("Tasks"), indented(_held_table(jobs, names, now))]
    return Group(*parts)


def _worker_facts(worker: Document, now: float | None) -> Iterator[tuple[str, Any]]:
    free, has = worker.get("free") or {}, worker.get("capabilities") or {}
    yield "backend", worker.get("backend")
    yield "cores", f"{amount(free.get('cores', 0))} free of {amount(worker.get('cpu_count', 0))}"
    yield "memory", f"{gib(free.get('memory_gb', 0))} free of {gib(worker.get('memory_gb', 0))}"
    yield "disk", f"{gib(has['disk_free_gb'])} free" if has.get("disk_free_gb") else ""
    yield "tasks", f"{worker.get('active_jobs', 0)} in {count(worker.get('total_slots', 0), 'slot')}"
    yield "labels", " ".join(f"{name}={value}" for name, value in sorted((worker.get("labels") or {}).items()))
    yield "torch", has.get("torch_version")
    yield "git commit", has.get("git_commit")
    yield "last seen", moment(worker.get("last_contact"), now)


def _device_table(devices: list[Document], names: Names) -> RenderableType:
    grid = Columns("#", "gpu", "vram free", "held by", cut={"held by": 20}, right=("#",))
    for device in devices:
        grid.add(
            str(device["index"]),
            plain(device.get("name") or "GPU"),
            part_of(device.get("vram_free_gb") or 0, device.get("vram_gb") or 0),
            _holders(device.get("held_by") or [], names),
        )
    return grid


def _holders(held: list[Document], names: Names) -> Text:
    if not held:
        return quiet("free")
    told = []
    for one in held:
        share = f" ({gib(one['vram_gb'])})" if one.get("vram_gb") else ""
        told.append(task_name(one["task_id"], names) + share)
    return plain(", ".join(told))


def task_name(task_id: str, names: Names) -> str:
    """'mlp' for a job's only task, 'sweep.17' for one of an array; the id where the job has no name."""
    job_id, dot, index = task_id.partition(".")
    return f"{names[job_id]}{dot}{index}" if job_id in names else task_id


def _held_table(jobs: list[Document], names: Names, now: float | None) -> RenderableType:
    grid = Columns("task", "name", "state", "for", cut={"name": 12})
    for job in jobs[:MOST_LISTED]:
        name = task_name(job["task_id"], names)
        told = plain("" if name == job["task_id"] else name)
        grid.add(plain(job["task_id"]), told, state_text(job["status"]), since(job.get("started_at"), now))
    if len(jobs) > MOST_LISTED:
        grid.add(quiet(f"and {len(jobs) - MOST_LISTED} more"), "", "", "")
    return grid


def status_screen(
    url: str,
    totals: Document,
    workers: list[Document],
    names: Names,
    oldest: Document | None,
    now: float | None = None,
    models: Sequence[Document] = (),
) -> RenderableType:
    hub = totals.get("hub") or {}
    parts: list[RenderableType] = [
        heading(f"Ostler {hub.get('version', '')} at {url}") + quiet(f"  up {since(hub.get('started_at'), now)}"),
        totals_line(totals),
        *_hubs_line(hub, totals.get("hubs") or []),
        *(Text(f"! {clean(alarm)}", "bold red") for alarm in alarms(totals, workers, models, now)),
        Text(),
        *_fleet_table(workers, names),
        *_models_line(models),
        Text(),
        _queue_line(totals.get("jobs") or {}),
        *_removed_line(totals.get("retention") or {}),
    ]
    if oldest is not None:
        parts += _oldest_lines(oldest, now)
    return Group(*parts, *_training_parts(totals, now))


def _training_parts(totals: Document, now: float | None) -> Iterator[RenderableType]:
    manifest, sweeps = totals.get("manifest"), totals.get("sweeps") or []
    if manifest:
        yield from (Text(), *manifest_progress(manifest, now))
    if sweeps:
        yield from (Text(), heading("Sweeps"), indented(sweep_table(sweeps[:MOST_SWEEPS])))
    if len(sweeps) > MOST_SWEEPS:
        yield indented(quiet(f"and {len(sweeps) - MOST_SWEEPS} more: ostler sweeps"))
    if manifest and (failures := manifest_failures(manifest, now)):
        yield from (Text(), *failures)


def totals_line(totals: Document) -> Text:
    states_of = totals.get("workers") or {}
    connected = states_of.get("ready", 0) + states_of.get("busy", 0)
    parts = [f"{connected} of {count(sum(states_of.values()), 'worker')} connected"]
    if totals["gpus"]["total"]:
        parts.append(f"{totals['gpus']['held']} of {count(totals['gpus']['total'], 'GPU')} held")
    parts.append(f"{amount(totals['cores']['held'])} of {amount(totals['cores']['total'])} cores held")
    parts.append(f"{part_of(totals['memory_gb']['held'], totals['memory_gb']['total'])} of memory held")
    return plain(" · ".join(parts))


def _removed_line(retention: Document) -> list[Text]:
    """What went because it was old, where anything did."""
    gone = retention.get("removed") or {}
    told = [count(gone[what], one) for what, one in REMOVED.items() if gone.get(what)]
    freed = gone.get("log_bytes", 0) + gone.get("artifact_bytes", 0)
    size = [gib(freed / 1024**3)] if freed else []
    return [quiet(f"removed as old since the hub started: {', '.join(told + size)}")] if told else []


def alarms(
    totals: Document, workers: list[Document], models: Sequence[Document] = (), now: float | None = None
) -> list[str]:
    """What somebody should look at, one sentence each; a kind of which there is much is told by its number."""
    found = [
        f"the disk of {disk['folder']} is nearly full ({gib(disk['free_bytes'] / 1024**3)} free): "
        "the hub takes no new jobs"
        for disk in totals.get("disk") or []
        if disk["low"]
    ]
    away = [worker for worker in workers if worker["status"] == "offline"]
    told = [f"{one['id']} ({since(one.get('last_contact'), now)})" for one in away[:MOST_NAMED]]
    more = f" and {len(away) - MOST_NAMED} more" if len(away) > MOST_NAMED else ""
    found += [f"not connected: {', '.join(told)}{more}"] if away else []
    if orphans := (totals.get("jobs") or {}).get(states.ORPHANED):
        found.append(f"{count(orphans, 'job')} on machines that are away: each is waited for, then run again")
    if cooling := [worker["id"] for worker in workers if worker.get("cooling")]:
        found.append(f"left alone after failures of their own: {', '.join(cooling[:MOST_NAMED])}")
    return found + [
        f"model {model['name']}: {first_line(model['error'])}" for model in models if model["state"] == "backing_off"
    ]


def _models_line(models: Sequence[Document]) -> list[Text]:
    """'Models  qwen ● ready on box, 2 serving · llama ○ stopped': those that are up before those that are not."""
    shown = sorted(models, key=lambda model: model["state"] == "stopped")[:MOST_MODELS]
    parts = [plain(model["name"]) + Text(" ") + model_state(model) + plain(_load(model)) for model in shown]
    more = [quiet(f"{len(models) - MOST_MODELS} more: ostler models")] if len(models) > MOST_MODELS else []
    return [Text(), heading("Models  ") + Text(" · ").join([*parts, *more])] if models else []


def _load(model: Document) -> str:
    where = f" on {model['worker']}" if model.get("worker") else ""
    busy = [f"{model[key]} {word}" for key, word in (("in_flight", "serving"), ("queued", "waiting")) if model[key]]
    return ", ".join([where, *busy]) if where else " " * bool(busy) + ", ".join(busy)


def _hubs_line(hub: Document, hubs: list[Document]) -> list[Text]:
    """Of several hubs, which one leads; of one that is the only one there is nothing to say."""
    if len(hubs) < 2:
        return []
    told = [f"{clean(one['url'])} {one['role'] if one['connected'] else 'gone'}" for one in hubs]
    return [plain(f"{' · '.join(told)} · term {hub.get('term', '–')}")]


def _fleet_table(workers: list[Document], names: Names) -> list[RenderableType]:
    """Of a large fleet the machines that need a look, then those with most to do."""
    if not workers:
        return [quiet("no workers; start one with: ostler worker --hub URL")]
    left_out = len(workers) - MOST_MACHINES
    if left_out > 0:
        by_need = sorted(workers, key=lambda one: (not _is_troubled(one), -one.get("active_jobs", 0), one["id"]))
        workers = by_need[:MOST_MACHINES]
    columns = ["worker", "state", "gpus held", "cores held", "memory held", "runs"]
    grid = Columns(*columns, cut={"worker": 10}, drop=("memory held", "cores held"), wrap="runs")
    for worker in workers:
        free = worker.get("free") or {}
        cores, memory = worker.get("cpu_count", 0), worker.get("memory_gb", 0)
        grid.add(
            plain(worker["id"]),
            worker_state(worker),
            gpus_line(worker),
            f"{amount(cores - free.get('cores', cores))} of {amount(cores)}",
            part_of(memory - free.get("memory_gb", memory), memory),
            runs_line(worker, names),
        )
    return [grid, *([quiet(f"and {left_out} more: ostler workers")] if left_out > 0 else [])]


def _is_troubled(worker: Document) -> bool:
    return bool(worker["status"] == "offline" or worker.get("draining") or worker.get("cooling"))


def runs_line(worker: Document, names: Names) -> Text:
    return plain(", ".join(_runs(worker, names)))


def _runs(worker: Document, names: Names) -> Iterator[str]:
    """What runs there, with the GPUs that it holds: 'mlp (GPU 0, 1)', 'eval (16 GiB of GPU 2)', 'sweep ×16'."""
    granted = _granted(worker)
    told: dict[str, int] = {}
    for task in worker.get("tasks") or []:
        task_id = task["task_id"]
        if task_id in granted:
            told[f"{task_name(task_id, names)} ({granted[task_id]})"] = 1
        else:
            job = task_name(task_id.partition(".")[0], names)
            told[job] = told.get(job, 0) + 1
    for position, (name, number) in enumerate(told.items()):
        if position == MOST_TASKS:
            yield f"and {len(told) - MOST_TASKS} more"
            return
        yield f"{name} ×{number}" if number > 1 else name


def _granted(worker: Document) -> dict[str, str]:
    """By task: 'GPU 0, 1' where it holds them whole, '16 GiB of GPU 2' where it shares one."""
    whole: dict[str, list[str]] = {}
    found = {}
    for device in worker.get("devices") or []:
        for holder in device.get("held_by") or []:
            if holder.get("vram_gb"):
                found[holder["task_id"]] = f"{gib(holder['vram_gb'])} of GPU {device['index']}"
            else:
                whole.setdefault(holder["task_id"], []).append(str(device["index"]))
    return found | {task_id: f"GPU {', '.join(indices)}" for task_id, indices in whole.items()}


def _queue_line(jobs: dict[str, int]) -> Text:
    line = heading("Jobs  ")
    shown = [state for state in states.STATES if jobs.get(state)]
    for position, state in enumerate(shown):
        line += Text(" · " if position else "") + state_text(f"{state}") + Text(f" {jobs[state]}")
    return line if shown else line + quiet("none waiting, none running")


def _oldest_lines(oldest: Document, now: float | None) -> list[RenderableType]:
    is_whole = oldest.get("state") == states.PENDING
    who = f"{titled(oldest)} has" if is_whole else f"tasks of {titled(oldest)} have"
    line = plain(f"{who} waited longest, {since(oldest.get('submitted_at'), now)}: ")
    line += quiet(needs(oldest.get("spec") or {}))
    why = (oldest.get("why") or {}).get("summary") or ""
    return [line, indented(plain(why))] if why else [line]


def token_table(tokens: list[Document], now: float | None = None) -> RenderableType:
    if not tokens:
        return quiet("no tokens but those of the state folder")
    grid = Columns("id", "role", "user", "age", "ends", cut={"user": 12})
    for token in tokens:
        grid.add(
            plain(token["id"]),
            plain(token["role"]),
            plain(token.get("user") or ""),
            since(token.get("created_at"), now),
            _token_end(token, now),
        )
    return grid


def _token_end(token: Document, now: float | None) -> str:
    if token.get("revoked_at"):
        return f"revoked {since(token['revoked_at'], now)} ago"
    ends_at = epoch(token.get("expires_at"))
    if ends_at is None:
        return ""
    left_s = ends_at - (time.time() if now is None else now)
    return f"in {span(left_s)}" if left_s > 0 else "expired"
