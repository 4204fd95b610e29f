"""A task's environment: the worker's own without its secrets, what the user asked for, and what was granted."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from ostler.domain.gang import torchrun
from ostler.domain.worker import Capabilities, DeviceInfo
from ostler.worker.orders import Order
from ostler.worker.tracking import tracked

_SECRET_WORDS = frozenset(
    {"TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "KEY", "KEYS", "CREDENTIAL"}
    | {"CREDENTIALS", "COOKIE", "AUTH", "DSN"}
)
_SECRET_ENDS = ("APIKEY", "AUTHTOKEN", "PASSWORD", "PASSWD", "SSHPASS", "_PWD", "_PAT")
_IN_AN_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s@]*:[^/\s@]+@")
"""A password in a URL."""
# Of the service manager: they speak of the worker's process and mean nothing, or harm, in another.
_NOT_THEIRS = frozenset(
    {"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC", "INVOCATION_ID"}
    | {"TRACEPARENT", "TRACESTATE", "MLFLOW_RUN_ID", "WANDB_RUN_ID"}  # and of whatever run the worker was started in
)
NO_GPU = ""
NO_HIP_GPU = "-1"
"""HIP takes an empty mask for none at all."""


class Folders(msgspec.Struct, frozen=True):
    """Where one attempt finds its things."""

    out: str
    checkpoint: str
    call: str = ""
    result: str = ""


def inherited(own: Mapping[str, str], secret: str = "") -> dict[str, str]:
    """
    What tasks inherit from the worker. Whoever may submit a job can read this, so nothing that looks like a secret is
    in it: what a task needs of that kind, its author puts into the spec.
    """
    return {
        name: value
        for name, value in own.items()
        if not _is_private(name) and not _is_secret(value, secret) and name not in _NOT_THEIRS
    }


def _is_private(name: str) -> bool:
    upper = name.upper()
    return upper.startswith("OSTLER_") or upper.endswith(_SECRET_ENDS) or not _SECRET_WORDS.isdisjoint(upper.split("_"))


def _is_secret(value: str, secret: str) -> bool:
    return bool(secret and secret in value) or ("://" in value and _IN_AN_ADDRESS.search(value.lower()) is not None)


def task_environment(
    base: Mapping[str, str],
    order: Order,
    capabilities: Capabilities,
    folders: Folders,
    hub: str,
    port: int = 0,
    secrets: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What the task's process gets beside `base`, which is what `inherited` gave, masks of visible devices included."""
    spec = order.spec
    env = {"PYTHONUNBUFFERED": "1"}
    if spec.min_cpu_cores > 0:
        env["OMP_NUM_THREADS"] = str(max(1, int(spec.min_cpu_cores)))
    env.update(spec.env)
    if spec.env:
        env.update(tracked(spec.env, order.task_id, order.attempt))
    env.update(secrets or {})
    # After the user's own: a grant is not to be widened, for somebody else may hold the rest.
    env.update(visible_devices(base, order.facts.devices, capabilities))
    env["OSTLER_JOB_ID"] = order.job_id
    env["OSTLER_TASK_ID"] = order.task_id
    env["OSTLER_ATTEMPT"] = order.attempt
    env["OSTLER_HUB"] = hub
    env["OSTLER_OUT"] = folders.out
    env["OSTLER_CHECKPOINT"] = folders.checkpoint
    if order.index is not None:
        env["OSTLER_INDEX"] = str(order.index)
    if port:
        env["OSTLER_PORT"] = str(port)
    if order.gang is not None:
        env.update(torchrun(order.gang.rank, order.gang.hosts, order.gang.master_port))
    if folders.result:
        env["OSTLER_CALL"] = folders.call
        env["OSTLER_RESULT"] = folders.result
    return env


def visible_devices(base: Mapping[str, str], granted: Sequence[int], capabilities: Capabilities) -> dict[str, str]:
    """The variables that show a task its GPUs and hide every other one. No grant hides all of them."""
    known = {device.index: device for device in capabilities.devices} if granted else {}
    devices = [known.get(index, DeviceInfo(index=index)) for index in granted]
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if capabilities.gpu_backend == "rocm":
        hip = ",".join(_hip_name(device, base) for device in devices)
        # Both alike: programs that find two masks which differ refuse to start.
        return {**order, "HIP_VISIBLE_DEVICES": hip or NO_HIP_GPU, "CUDA_VISIBLE_DEVICES": hip or NO_GPU}
    offered = [device.index for device in capabilities.offer().devices] if granted else []
    words = _words(base.get("CUDA_VISIBLE_DEVICES"))
    names = [device.uuid or _cuda_index(device.index, offered, words) for device in devices]
    return {**order, "CUDA_VISIBLE_DEVICES": ",".join(names) or NO_GPU}


def _cuda_index(index: int, offered: Sequence[int], words: Sequence[str]) -> str:
    """Under a mask, a device that the mask shows: by its own number or, where the offer counts from 0, by its place."""
    if not words or all(str(one) in words for one in offered):
        return str(index)
    place = offered.index(index) if index in offered else index
    return words[place] if place < len(words) else str(index)


def _hip_name(device: DeviceInfo, base: Mapping[str, str]) -> str:
    """HIP counts only what ROCR's own mask, if there is one, has left."""
    left = [word.lower() for word in _words(base.get("ROCR_VISIBLE_DEVICES"))]
    for name in (str(device.index), device.uuid.lower()):
        if name in left:
            return str(left.index(name))
    return str(device.index)


def _words(mask: str | None) -> list[str]:
    return [word.strip() for word in mask.split(",") if word.strip()] if mask else []
