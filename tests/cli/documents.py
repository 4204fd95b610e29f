"""Documents as a hub sends them, for a fleet of three machines at one moment."""

from hashlib import sha256
from typing import Any

NOW = 1_800_000_000.0
"""2027-01-15T08:00:00Z."""

GIB_A100 = 80.0


def at(seconds_ago: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(NOW - seconds_ago, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job(job_id: str, state: str = "pending", **more: Any) -> dict[str, Any]:
    document = {
        "id": job_id,
        "name": "",
        "state": state,
        "status": state,
        "reason": "",
        "exit_code": None,
        "worker": None,
        "user_id": "ada",
        "attempt": None,
        "submitted_at": at(720),
        "started_at": None,
        "finished_at": None,
        "artifact_id": None,
        "attempts": [],
        "spec": {"command": ["python", "train.py", "--name", "first try"], "user_id": "ada", "id": job_id},
    }
    return {**document, **more}


WAITING = job(
    "01hq8xk2m0q4r5t6v7",
    name="mlp-large",
    spec={
        "command": ["python", "train.py"],
        "gpu_count": 4,
        "gpu_type": "A100",
        "min_cpu_cores": 8,
        "min_memory_gb": 16,
        "labels": ["zone = eu"],
    },
)
RUNNING = job(
    "01hq8xk2m0q4r5t6w8",
    "running",
    name="mlp",
    worker="gpu-box-1",
    started_at=at(300),
    attempt="aa11",
    attempts=[
        {
            "attempt": "aa10",
            "worker": "gpu-box-2",
            "state": "orphaned",
            "reason": "its worker went silent",
            "devices": [0, 1],
            "why": "",
            "started_at": at(700),
            "finished_at": at(400),
        },
        {
            "attempt": "aa11",
            "worker": "gpu-box-1",
            "state": "running",
            "reason": "",
            "devices": [0, 1],
            "why": "leaves the fewest GPUs stranded",
            "started_at": at(300),
            "finished_at": None,
        },
    ],
    spec={
        "command": ["python", "train.py", "--lr", "3e-4"],
        "gpu_count": 2,
        "gpu_type": "A100",
        "min_cpu_cores": 8,
        "min_memory_gb": 16,
        "max_retries": 2,
        "max_runtime_hours": 2,
        "env": {"RATE": "0.1", "WANDB_API_KEY": "hunter2"},
    },
)
FAILED = job(
    "nightly-eval-00017",
    "failed",
    name="nightly",
    worker="pi-3",
    exit_code=3,
    reason="exit code 3",
    submitted_at=at(90_000),
    started_at=at(89_000),
    finished_at=at(88_000),
)
SWEEP = job(
    "01hq8vm9d2q4r5t6v7",
    "running",
    name="sweep",
    counts={"pending": 85, "running": 3, "succeeded": 11, "failed": 1},
    spec={"command": ["python", "sweep.py"], "array": 100, "min_cpu_cores": 1},
)

WHY = {
    "state": "pending",
    "summary": "waits for room: needs 4 GPUs; gpu-box-1 has 2 free of 4",
    "blockers": [{"axis": "gpu_count", "reason": "needs 4 GPUs; gpu-box-1 has 2 free of 4", "workers": ["gpu-box-1"]}],
    "workers": [
        {
            "id": "pi-3",
            "fits": False,
            "reasons": [
                "needs GPU type a100; pi-3 has no GPU of a known type",
                "needs zone = eu; pi-3 has no label zone",
                "needs 4 GPUs; pi-3 has 0 free of 0",
                "needs 16 GiB of memory; pi-3 has 7.5 GiB free of 7.5 GiB",
            ],
        },
        {"id": "gpu-box-1", "fits": False, "reasons": ["needs 4 GPUs; gpu-box-1 has 2 free of 4"]},
        {
            "id": "gpu-box-2",
            "fits": False,
            "reasons": ["gpu-box-2 is offline", "needs GPU type a100; gpu-box-2 has RTX 4090"],
        },
    ],
    "change": "ask for 2 GPUs instead of 4 (on gpu-box-1)",
    "estimate": None,
}


def _device(index: int, held_by: list[dict[str, Any]], free: float) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "A100",
        "vram_gb": GIB_A100,
        "vram_free_gb": free,
        "held_by": held_by,
    }


def _worker(worker_id: str, **more: Any) -> dict[str, Any]:
    document = {
        "id": worker_id,
        "backend": "cpu",
        "gpu_count": 0,
        "vram_gb": 0.0,
        "cpu_count": 4.0,
        "memory_gb": 7.5,
        "status": "ready",
        "active_jobs": 0,
        "total_slots": 8,
        "last_heartbeat": at(4),
        "last_contact": at(4),
        "draining": False,
        "cooling": False,
        "capabilities": {},
        "labels": {"hostname": worker_id, "os": "linux", "arch": "aarch64", "python": "3.11"},
        "free": {"gpus": 0, "cores": 4.0, "memory_gb": 7.5},
        "devices": [],
        "tasks": [],
        "jobs": [],
    }
    return {**document, **more}


WORKERS = [
    _worker(
        "gpu-box-1",
        backend="nvidia",
        gpu_count=4,
        vram_gb=320.0,
        cpu_count=64.0,
        memory_gb=256.0,
        active_jobs=3,
        total_slots=64,
        capabilities={"disk_free_gb": 900.0, "torch_version": "2.9.1", "git_commit": "4f1c2d9"},
        labels={
            "hostname": "gpu-box-1",
            "os": "linux",
            "arch": "x86_64",
            "python": "3.11",
            "zone": "eu",
            "driver": "570",
        },
        free={"gpus": 1, "cores": 55.0, "memory_gb": 220.0},
        devices=[
            _device(0, [{"task_id": RUNNING["id"], "vram_gb": None}], 0.0),
            _device(1, [{"task_id": RUNNING["id"], "vram_gb": None}], 0.0),
            _device(2, [{"task_id": f"{SWEEP['id']}.12", "vram_gb": 16.0}, {"task_id": "lone", "vram_gb": 24.0}], 40.0),
            _device(3, [], GIB_A100),
        ],
        tasks=[
            {"task_id": RUNNING["id"], "attempt": "aa11", "state": "running"},
            {"task_id": f"{SWEEP['id']}.12", "attempt": "bb", "state": "running"},
            {"task_id": "lone", "attempt": "cc", "state": "running"},
        ],
        jobs=[{"task_id": RUNNING["id"], "job_name": "", "status": "running", "started_at": at(300)}],
    ),
    _worker("gpu-box-2", status="offline", backend="nvidia", cpu_count=16.0, memory_gb=64.0, last_contact=at(7500)),
    _worker("pi-3", draining=True),
]
NAMES = {RUNNING["id"]: "mlp", SWEEP["id"]: "sweep"}
STATUS = {
    "jobs": {"pending": 12, "running": 3},
    "workers": {"ready": 2, "busy": 0, "offline": 1},
    "gpus": {"total": 4, "held": 3},
    "cores": {"total": 68.0, "held": 9.0},
    "memory_gb": {"total": 263.5, "held": 36.0},
    "hub": {"version": "0.1.0", "started_at": at(11_000)},
}


def sweep_job(name: str, hyper: dict[str, Any], status: str = "completed", **metrics: float) -> dict[str, Any]:
    return {
        "job_id": sha256(name.encode()).hexdigest(),
        "name": name,
        "hyper": hyper,
        "status": status,
        "reason": "exit code 1: ValueError: loss is not finite" if status == "failed" else "",
        "worker": None if status == "pending" else "gpu-box-1",
        "metrics": metrics,
        "value": metrics.get("val_loss"),
    }


def sweep(name: str, jobs: list[dict[str, Any]], metric: str = "val_loss", goal: str = "min") -> dict[str, Any]:
    counts: dict[str, int] = {}
    for one in jobs:
        counts[one["status"]] = counts.get(one["status"], 0) + 1
    ended = [one for one in jobs if one["status"] == "completed" and one["value"] is not None]
    best = (min if goal == "min" else max)(ended, key=lambda one: one["value"]) if ended else None
    return {
        "name": name,
        "model": "mlp",
        "mode": "realistic",
        "metric": metric,
        "goal": goal,
        "counts": counts,
        "total": len(jobs),
        "best": best and {key: best[key] for key in ("job_id", "name", "value", "hyper")},
        "jobs": jobs,
    }


RATES = sweep(
    "mlp-{lr}",
    [
        sweep_job(f"mlp-{lr}", {"lr": lr, "epochs": 3}, val_loss=loss, accuracy=1 - loss)
        for lr, loss in ((0.1, 0.71), (0.03, 0.42), (0.01, 0.305), (0.003, 0.28), (0.001, 0.34), (0.0001, 0.62))
    ],
)
GRID = sweep(
    "mlp-{lr}-{width}",
    [
        sweep_job(f"mlp-{lr}-{width}", {"lr": lr, "width": width}, val_loss=round(0.2 + lr * 3 + 8 / width, 4))
        for lr in (0.1, 0.01, 0.001)
        for width in (32, 64, 128)
    ]
    + [
        sweep_job("mlp-0.1-256", {"lr": 0.1, "width": 256}, "failed", val_loss=9.5),
        sweep_job("mlp-0.01-256", {"lr": 0.01, "width": 256}, "running"),
        sweep_job("mlp-0.001-256", {"lr": 0.001, "width": 256}, "pending"),
    ],
)
KINDS = sweep(
    "opt-{optimizer}",
    [
        sweep_job(f"opt-{kind}", {"optimizer": kind}, val_loss=loss)
        for kind, loss in (("sgd", 0.41), ("adam", 0.31), ("lion", 0.29))
    ],
)
MANIFEST = {
    "file": "manifest.toml",
    "applied_at": at(900),
    "counts": {"completed": 20, "running": 3, "claimed": 1, "pending": 14, "failed": 12},
    "failed": [
        {
            "id": sha256(f"f{n}".encode()).hexdigest(),
            "name": f"gbt-monotone-{n}",
            "reason": f"exit code 1: ValueError: try {n}: monotonic constraints are not supported for multiclass labels",
            "worker": "gpu-box-1",
            "finished_at": at(60.0 * n),
        }
        for n in range(1, 12)
    ],
}
CHANGED = {
    "inserted": 2,
    "unchanged": 1,
    "updated": 1,
    "absent": 1,
    "jobs": [
        {
            "job_id": sha256(name.encode()).hexdigest(),
            "name": name,
            "change": change,
            "differs": differs,
            "state": state,
            "workers": workers,
            "why": why,
        }
        for name, change, differs, state, workers, why in (
            ("mlp-0.1", "inserted", [], "pending", ["gpu-box-1", "pi-3"], ""),
            ("mlp-huge", "inserted", [], "pending", [], "needs 80 GiB of memory; pi-3 has 7.5 GiB free of 7.5 GiB"),
            ("gbt", "updated", ["gpu_backend", "gpu_count", "priority"], "pending", ["gpu-box-1"], ""),
            ("gbt-done", "unchanged", [], "succeeded", [], ""),
            ("old", "absent", [], "running", [], ""),
        )
    ],
}
