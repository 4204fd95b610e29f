"""What Slurm's commands print, understood. Pure.

Their plain output with a format of our own: the JSON of `--json` changes its shape with every release.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ostler.bridge.base import Fate, Node, Sight

JOBS_FORMAT = "%i|%T|%r|%k"
PARTITION_FORMAT = "%R|%a|%l"
ACCOUNT_FORMAT = "JobID,State,ExitCode"
FAILURES_FORMAT = "JobArrayID:50,exit_code:20"

_FATES: dict[str, Fate] = {
    "COMPLETED": "exited",
    "FAILED": "exited",
    "TIMEOUT": "out of time",
    "DEADLINE": "out of time",
    "OUT_OF_MEMORY": "out of memory",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "lost",
    "BOOT_FAIL": "lost",
}
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING")
"""Completing: its processes, or the site's epilog, are not gone."""
_CLOSED = {
    "DOWN": "down",
    "DRAIN": "drained",
    "DRAINED": "drained",
    "DRAINING": "drained",
    "FAIL": "failing",
    "FAILING": "failing",
    "ERROR": "failing",
    "INVAL": "wrongly configured",
    "MAINT": "in maintenance",
    "RESERVED": "reserved",
    "NOT_RESPONDING": "not responding",
    "UNKNOWN": "not responding",
    "FUTURE": "not there yet",
    "REBOOT": "about to be started again",
    "REBOOT_REQUESTED": "about to be started again",
    "REBOOT_ISSUED": "being started again",
    "POWERING_DOWN": "being switched off",
    "BLOCKED": "blocked",
}
_GPU = re.compile(r"(?:gres/)?gpu(?::(?P<type>[^:=,]+))?[:=](?P<count>\d+)")
_IN_BRACKETS = re.compile(r"\([^)]*\)")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")


class Job(NamedTuple):
    id: str
    sight: Sight
    comment: str
    state: str


class Partition(NamedTuple):
    name: str
    is_up: bool
    limit_s: float


def jobs(text: str) -> list[Job]:
    """Of `squeue -o JOBS_FORMAT`. The comment is last: whoever wrote it may have put anything into it."""
    found = []
    for line in text.splitlines():
        parts = line.split("|", 3)
        if len(parts) == 4:
            job, state, reason, comment = parts
            found.append(Job(job.strip(), sight(state.strip(), reason.strip()), comment.strip(), state.strip()))
    return found


def sight(state: str, reason: str = "", exit_code: int | None = None) -> Sight:
    """Of a state in any of the spellings of squeue and sacct: `CANCELLED by 1000`, `CANCELLED+`."""
    word = state.split()[0].rstrip("+") if state.split() else ""
    if word in _FATES:
        code = 0 if word == "COMPLETED" and exit_code is None else exit_code
        return Sight(phase="over", reason=_told(word, reason), fate=_FATES[word], exit_code=code)
    if word in _RUNNING:
        return Sight(phase="running", reason=reason)
    return Sight(phase="waiting", reason=reason if reason not in ("", "None") else word.lower())


def _told(word: str, reason: str) -> str:
    return word if reason in ("", "None") else f"{word}: {reason}"


def exit_code(text: str) -> int | None:
    """`1:0` is exit code 1, `0:9` an end by signal 9."""
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    return 128 + int(number) if number.isdigit() and int(number) else int(code)


def failures(text: str) -> dict[str, int | None]:
    """Of `squeue -O FAILURES_FORMAT`, which tells what the kernel did: 256 is exit code 1, 9 an end by signal 9."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: _of_status(row[1]) for row in rows if len(row) == 2}


def _of_status(text: str) -> int | None:
    if not text.isdigit():
        return exit_code(text)
    return 128 + (int(text) & 127) if int(text) & 127 else int(text) >> 8


def accounts(text: str) -> dict[str, Sight]:
    """Of `sacct -X -n -P -o ACCOUNT_FORMAT`."""
    found = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) >= 3:
            found[parts[0]] = sight(parts[1], "", exit_code(parts[2]))
    return found


def value(line: str, key: str) -> str:
    """Of one line of `scontrol -o show …`; "" where it is not there, or is nothing."""
    found = re.search(rf"(?:^|\s){re.escape(key)}=(\S*)", line)
    return found[1] if found and found[1] not in ("(null)", "N/A", "n/a") else ""


def settings(text: str) -> dict[str, str]:
    """Of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): told.strip() for name, _, told in pairs}


def seconds(text: str) -> float:
    """Of Slurm's times: minutes, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM:SS`. 0 where there is no limit."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return 0.0
    parts = [int(part) for part in found["rest"].split(":")]
    if found["days"] is not None:
        hours, minutes, secs = (*parts, 0, 0)[:3]
        return float(int(found["days"]) * 86_400 + hours * 3600 + minutes * 60 + secs)
    if len(parts) == 3:
        return float(parts[0] * 3600 + parts[1] * 60 + parts[2])
    return float(parts[0] * 60 + (parts[1] if len(parts) == 2 else 0))


def partitions(text: str) -> list[Partition]:
    """Of `sinfo -h -o PARTITION_FORMAT`."""
    rows = (line.split("|") for line in text.splitlines() if line.count("|") >= 2)
    return [Partition(row[0], row[1] == "up", seconds(row[2])) for row in rows]


def gpus(text: str) -> Counter[str]:
    """By type, of `gpu:a100:4(S:0-1),gpu:2`, and of `gres/gpu=2` as it is written in TRES."""
    found: Counter[str] = Counter()
    for part in _IN_BRACKETS.sub("", text).split(","):
        match = _GPU.fullmatch(part.strip())
        if match is not None:
            found[match["type"] or ""] += int(match["count"])
    return found


def nodes(text: str, partition: Partition) -> list[Node]:
    """Of `scontrol -o -d show node`: those of this partition."""
    lines = [line for line in text.splitlines() if line.startswith("NodeName=")]
    return [_node(line, partition) for line in lines if partition.name in value(line, "Partitions").split(",")]


def _node(line: str, partition: Partition) -> Node:
    cores = _number(value(line, "CPUEfctv") or value(line, "CPUTot"))
    memory_mib = _number(value(line, "RealMemory")) - _number(value(line, "MemSpecLimit"))
    if memory_mib <= 1:
        memory_mib = 0  # what slurm.conf says of nobody is 1
    gpu_type, count = _most(gpus(value(line, "Gres")))
    used = gpus(value(line, "GresUsed")) or gpus(value(line, "AllocTRES"))
    features = value(line, "ActiveFeatures").split(",")
    return Node(
        name=value(line, "NodeName"),
        address=value(line, "NodeAddr"),
        cores=cores,
        free_cores=max(0, cores - _number(value(line, "CPUAlloc"))),
        memory_mib=memory_mib,
        free_mib=max(0, memory_mib - _number(value(line, "AllocMem"))),
        gpus=count,
        free_gpus=max(0, count - (used[gpu_type] or (used[""] if gpu_type not in used else 0))),
        gpu_type=gpu_type,
        limit_s=partition.limit_s,
        closed=_closed(line, partition),
        arch=value(line, "Arch"),
        labels={"slurm.partition": partition.name, **{f"slurm.feature.{one}": "yes" for one in features if one}},
    )


def _most(kinds: Counter[str]) -> tuple[str, int]:
    """A worker has one type of GPU: of several, the one that there are most of."""
    return max(kinds.items(), key=lambda kind: (kind[1], kind[0]), default=("", 0))


def _closed(line: str, partition: Partition) -> str:
    state = value(line, "State")
    words = [word.rstrip("*~#!%$@^-") for word in state.split("+")]
    told = next((_CLOSED[word] for word in words if word in _CLOSED), "not responding" if "*" in state else "")
    if not told:
        return "" if partition.is_up else f"partition {partition.name} is down in Slurm"
    reason = re.search(r"\sReason=(.*?)(?: \[|$)", line)
    why = f" ({reason[1].strip()})" if reason and reason[1].strip() not in ("", "none", "(null)") else ""
    return f"the node is {told} in Slurm{why}"


def _number(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def default_memory(settings: dict[str, str]) -> bool:
    """Whether a job that asks for no memory gets some of it, and not all that its node has."""
    counted = "MEMORY" in settings.get("SelectTypeParameters", "").upper()
    given = [settings.get(name, "") for name in ("DefMemPerNode", "DefMemPerCPU", "DefMemPerGPU")]
    return not counted or any(text.isdigit() and int(text) for text in given)


def shares(of: Iterable[Node]) -> dict[str, float]:
    """By node, how much memory goes with a core, in MiB."""
    return {node.name: node.memory_mib / node.cores for node in of if node.cores}
