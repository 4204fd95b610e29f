"""What is tried on the device, one after the other. Each returns what was seen, or raises what was broken."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.fleet import HERE, WORKER, Document, GpuFleet, need, until, used_mib

SLACK_MIB = 64
"""Less than this is nothing: drivers keep a little here and there."""


def detection(fleet: GpuFleet) -> Document:
    """What the worker offers is what nvidia-smi says."""
    fields = "name,uuid,memory.total,driver_version"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    name, uuid, total_mib, driver = subprocess.check_output(query, text=True).splitlines()[0].split(", ")
    worker = fleet.client.worker(WORKER)
    device = fleet.device()
    need(device["uuid"] == uuid, f"the device is {uuid}, and the worker offers {device['uuid']}")
    need(device["name"] == name, f"the device is a {name}, and the worker offers a {device['name']}")
    need(abs(device["vram_gb"] * 1024 - int(total_mib)) < 1024, f"{total_mib} MiB, offered as {device['vram_gb']} GiB")
    need(worker["capabilities"]["gpu_backend"] == "nvidia", f"the backend is {worker['capabilities']['gpu_backend']}")
    telling = (
        "gpu_backend",
        "gpu_count",
        "gpu_type",
        "vram_gb",
        "cpu_count",
        "memory_gb",
        "torch_version",
        "os",
        "arch",
    )
    offered = {key: worker["capabilities"].get(key) for key in telling}
    return {"name": name, "memory_mib": int(total_mib), "driver": driver, "offered": offered}


def shares(fleet: GpuFleet) -> Document:
    """Two tasks have a share each of one device at the same time; a third, too large for the rest, waits for one."""
    files = {name: str(fleet.folder / name) for name in ("one", "two", "enough")}
    share, taken = fleet.part(0.35), fleet.part(0.3)
    one = fleet.hold(taken, "--begun", files["one"], "--until", files["enough"], min_vram_gb=share)
    two = fleet.hold(taken, "--begun", files["two"], "--until", files["enough"], min_vram_gb=share)
    until(lambda: all(os.path.exists(files[name]) for name in ("one", "two")), "both to hold their share")
    in_use = used_mib()
    third = fleet.hold(1, min_vram_gb=fleet.part(0.5))
    why = fleet.client.why(third)
    need(why["state"] == "pending", f"the third is {why['state']} although there is no room for it")
    held = fleet.device()["held_by"]
    need(len(held) == 2, f"{len(held)} tasks hold the device, not 2")
    open(files["enough"], "w").close()
    for job_id in (one, two, third):
        fleet.ended(job_id)
    need(in_use >= 2 * taken * 1024, f"{in_use} MiB were in use while two tasks held {taken} GiB each")
    return {"share_gib": share, "each_took_gib": taken, "in_use_mib": in_use, "third_waited_for": why["summary"]}


def killed(fleet: GpuFleet) -> Document:
    """The process of a task that holds most of the device is killed with -9: the next task finds the memory free."""
    baseline, begun = used_mib(), str(fleet.folder / "killed.begun")
    first = fleet.hold(fleet.part(0.8), "--begun", begun, "--until", "/nowhere", gpu_count=1)
    until(lambda: os.path.exists(begun), "the task to hold the device")
    second = fleet.hold(fleet.part(0.8), gpu_count=1)
    in_use, pid = used_mib(), fleet.said(first)["pid"]
    os.kill(pid, signal.SIGKILL)
    killed_at = time.time()
    fleet.ended(first, "failed")
    fleet.ended(second)
    found = fleet.said(second)
    need(found["before_mib"] <= baseline + SLACK_MIB, f"the next task found {found['before_mib']} MiB in use")
    return {
        "held_mib": in_use - baseline,
        "baseline_mib": baseline,
        "next_found_mib": found["before_mib"],
        "next_held_after_s": round(found["at"] - killed_at, 2),
    }


def left_behind(fleet: GpuFleet) -> Document:
    """A task ends well and leaves a daemon of its own session that holds the device: the next finds it gone."""
    baseline, begun = used_mib(), str(fleet.folder / "apart.begun")
    first = fleet.hold(fleet.part(0.8), "--apart", "--begun", begun, gpu_count=1)
    second = fleet.hold(fleet.part(0.8), gpu_count=1)
    job = fleet.ended(first)
    fleet.ended(second)
    found = fleet.said(second)
    need(found["before_mib"] <= baseline + SLACK_MIB, f"the next task found {found['before_mib']} MiB in use")
    return {"baseline_mib": baseline, "next_found_mib": found["before_mib"], "reason": job["reason"]}


def outside(fleet: GpuFleet) -> Document:
    """A program that Ostler did not start takes most of the device: nothing is placed on what it holds."""
    begun, enough = str(fleet.folder / "outside.begun"), str(fleet.folder / "outside.enough")
    command = [sys.executable, str(HERE / "holding.py"), str(fleet.part(0.7)), "--begun", begun, "--until", enough]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": fleet.device()["uuid"]}
    stranger = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        until(lambda: os.path.exists(begun), "the stranger to hold the device")
        free = fleet.part(0.35)
        seen_s = until(lambda: fleet.device()["vram_free_gb"] < free, "the worker to see what others hold")
        waiting = fleet.hold(fleet.part(0.5), min_vram_gb=fleet.part(0.5))
        why = fleet.client.why(waiting)
        need(why["state"] == "pending", f"a job for half of the device is {why['state']}")
        open(enough, "w").close()
        need(stranger.wait(60) == 0, "the stranger has failed")
    finally:
        with contextlib.suppress(ProcessLookupError):
            stranger.kill()
    fleet.ended(waiting)
    return {"stranger_gib": fleet.part(0.7), "seen_after_s": round(seen_s, 1), "told": why["summary"]}


def out_of_memory(fleet: GpuFleet) -> Document:
    """A task that asked for too small a share runs out of memory beside another, and is run again with more."""
    begun, enough = str(fleet.folder / "oom.begun"), str(fleet.folder / "oom.enough")
    neighbour = fleet.hold(fleet.part(0.5), "--begun", begun, "--until", enough, min_vram_gb=fleet.part(0.55))
    until(lambda: os.path.exists(begun), "the neighbour to hold its share")
    greedy = fleet.hold(fleet.part(0.7), min_vram_gb=fleet.part(0.3), on_oom="larger", name="greedy")
    until(lambda: len(fleet.client.job(greedy)["attempts"]) == 1, "the first attempt")
    first = until(lambda: bool(fleet.client.job(greedy)["attempts"][0]["finished_at"]), "it to run out of memory")
    again = fleet.client.why(greedy)
    need(again["state"] == "pending", f"after it ran out of memory it is {again['state']}")
    open(enough, "w").close()
    fleet.ended(neighbour)
    job = fleet.ended(greedy)
    attempts = [(one["state"], one["reason"]) for one in job["attempts"]]
    need(len(attempts) == 2 and "out of GPU memory" in attempts[0][1], f"its attempts were {attempts}")
    return {"attempts": attempts, "ran_out_after_s": round(first, 1), "then": again["summary"]}


def learnt(fleet: GpuFleet) -> Document:
    """`min_vram_gb = "auto"`: the first run has a whole device; what it took is what the next of its kind ask for."""
    files = {name: str(fleet.folder / f"auto.{name}") for name in ("one", "two", "enough")}
    took = fleet.part(0.2)
    first = fleet.hold(took, "--seconds", "4", **_auto())  # devices are looked at every second
    until(lambda: bool(fleet.device()["held_by"]), "the first to start")
    whole = fleet.device()["held_by"]
    fleet.ended(first)
    pair = [fleet.hold(took, "--begun", files[name], "--until", files["enough"], **_auto()) for name in ("one", "two")]
    until(lambda: all(os.path.exists(files[name]) for name in ("one", "two")), "two of a kind side by side")
    held = [one["vram_gb"] for one in fleet.device()["held_by"]]
    open(files["enough"], "w").close()
    for job_id in pair:
        fleet.ended(job_id)
    need(len(held) == 2 and all(share and share >= took for share in held), f"they hold {held} of {took} GiB")
    need(whole[0]["vram_gb"] is None, f"the first of its kind had a share of {whole} GiB")
    return {"each_takes_gib": took, "each_asked_for_gib": held}


def _auto() -> Document:
    return {"min_vram_gb": "auto", "name": "auto"}


def models(fleet: GpuFleet) -> Document:
    """The gateway swaps two PyTorch models that do not fit beside each other; each begins to load on a free device."""
    baseline = used_mib()
    calls = [_call(fleet, name) for name in ("bay", "grey", "bay", "grey", "grey")]
    diary = [json.loads(line) for line in (fleet.folder / "diary.jsonl").read_text().splitlines()]
    need([line["name"] for line in diary] == ["bay", "grey", "bay", "grey"], f"loaded were {diary}")
    for line in diary:
        need(line["before_mib"] <= baseline + SLACK_MIB, f"{line['name']} began with {line['before_mib']} MiB in use")
    fleet.client.change_model("grey", "unload")
    freed_s = until(lambda: used_mib() <= baseline + SLACK_MIB, "the device to be free after the unload")
    return {
        "baseline_mib": baseline,
        "loads": [{key: line[key] for key in ("name", "before_mib", "after_mib")} for line in diary],
        "load_s": [round(line["ready"] - line["begun"], 1) for line in diary],
        "first_token_s": [call["first_s"] for call in calls],
        "tokens_per_s": [call["per_s"] for call in calls],
        "freed_after_s": round(freed_s, 2),
    }


def one_ledger(fleet: GpuFleet) -> Document:
    """A job wants the whole device, which an idle model holds: the model makes room, and is back when it is called."""
    baseline = used_mib()
    _call(fleet, "bay")
    held = used_mib() - baseline
    job = fleet.hold(fleet.part(0.8), gpu_count=1)
    begun = time.time()
    fleet.ended(job)
    found = fleet.said(job)
    need(found["before_mib"] <= baseline + SLACK_MIB, f"the job found {found['before_mib']} MiB in use")
    return {
        "the_model_held_mib": held,
        "the_job_found_mib": found["before_mib"],
        "the_job_held_it_after_s": round(found["at"] - begun, 2),
        "the_model_answered_again_after_s": _call(fleet, "bay")["first_s"],
    }


def _call(fleet: GpuFleet, model: str) -> Document:
    body = {"model": model, "stream": True, "max_tokens": 16, "messages": [{"role": "user", "content": "Whoa"}]}
    request = urllib.request.Request(
        f"{fleet.gateway}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": "Bearer sk-gpu", "Content-Type": "application/json"},
    )
    begun, times = time.monotonic(), []
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                times.append(time.monotonic())
    need(len(times) == 16, f"{model} answered with {len(times)} tokens, not 16")
    return {"first_s": round(times[0] - begun, 2), "per_s": round(15 / (times[-1] - times[0]), 1)}


CASES: dict[str, Callable[[GpuFleet], dict[str, Any]]] = {
    "detection": detection,
    "shares": shares,
    "killed": killed,
    "left behind": left_behind,
    "outside": outside,
    "out of memory": out_of_memory,
    "learnt": learnt,
    "models": models,
    "one ledger": one_ledger,
}
