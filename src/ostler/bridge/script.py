"""What runs on a node: a shell script that keeps one attempt, and one that becomes it.

    .job/record    what was launched, for the bridge that comes after this one
    .job/keep.sh   begins the attempt once, waits for it, and leaves its exit code
    .job/run.sh    the attempt's environment and command; nobody else may read it
    .job/begun     a folder, made by whoever begins it: a second job of the same attempt ends without a word; or a file,
                   made by the bridge: nobody is to begin it
    .job/contact   when the hub was last in contact, for an attempt that must not run on without it
    .job/exit      "<code> <began> <ended>", written when its main process is gone
    .job/told      a signal has come
    .job/stopped   why the script itself has ended it

Pure: texts only. The bridge's own folder, and all of these, are on a file system that the nodes share.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

JOB = ".job"
RECORD, KEEP, RUN, BEGUN, CONTACT = "record", "keep.sh", "run.sh", "begun", "contact"
EXIT, TOLD, STOPPED = "exit", "told", "stopped"
MASKS = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)
"""Who gives out the devices says which these are; the hub only knows how many."""
LOST_CONTACT = "lost contact"
NOT_EXECUTABLE, TERMINATED, NOT_ITS_TURN = 126, 143, 75
"""The last is that of a job whose attempt another job has begun, or that nobody is to begin."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_KEEP = """#!/bin/sh
cd {job} && mkdir begun 2>/dev/null || exit {not_its_turn}
began=$(date +%s.%N)
{lease}for mask in {masks}; do
  eval "test -z \\"\\${{$mask+set}}\\" || set -- \\"\\$@\\" \\"$mask=\\$$mask\\""
done
env -i "$@" /bin/sh {job}/run.sh >> {log} 2>&1 &
task=$!
trap ': > told' TERM INT
while :; do
  wait $task
  code=$?
  kill -0 $task 2>/dev/null || break
done
wait $task 2>/dev/null
last=$?
test $last -eq 127 || code=$last
echo "$code $began $(date +%s.%N)" > exit.part && mv exit.part exit
{done}exit $code
"""
"""The trap comes after the fork: a child of a shell that has one may lose a signal before its own first line, while the
shell itself has heard it. Until the trap is there a signal ends both, and the batch system says so.

A `wait` that a signal has cut short tells of the signal, even where the task has ended meanwhile: then its own code is
there for the next one, and 127 where it was told before."""

_LEASE = """read contact < contact
test $((contact + {lease_s} - $(date +%s))) -gt 0 || {{ echo "{told}" > stopped; exit {terminated}; }}
(
  trap '' TERM
  while :; do
    read contact < contact
    left=$((contact + {lease_s} - $(date +%s)))
    test "$left" -gt 0 || break
    test "$left" -lt 5 || left=5
    sleep "$left"
  done
  echo "{told}" > stopped
  kill -TERM 0
  sleep {grace_s}
  kill -KILL 0
) > /dev/null 2>&1 &
watch=$!
"""
"""Without contact nothing begins, and its end is that of what is terminated at once. What has begun ends with the
whole process group, for which a batch system makes a job's script the leader."""

_RUN = """{exports}
test ! -e {told} || exit {terminated}
cd {work} || exit {not_executable}
exec {command}
"""
"""Who signals the processes of a job one by one may have looked before this one was there: then only the script above
has heard it."""


def keep_script(job: str, log: str, lease_s: float = 0.0, grace_s: float = 10.0) -> str:
    """`job` is the attempt's own folder for this, `log` where its output goes."""
    lease = done = ""
    if lease_s:
        grace = max(1, round(grace_s))
        lease = _LEASE.format(lease_s=int(lease_s), grace_s=grace, told=LOST_CONTACT, terminated=TERMINATED)
        done = "kill -KILL $watch\n"
    return _KEEP.format(
        job=shlex.quote(job),
        log=shlex.quote(log),
        masks=" ".join(MASKS),
        lease=lease,
        done=done,
        not_its_turn=NOT_ITS_TURN,
    )


def run_script(argv: Sequence[str], env: Mapping[str, str], job: str, work: str, *, with_devices: bool) -> str:
    """What the batch system says of devices goes before what the hub said, where it gives any out."""
    kept = {name: value for name, value in env.items() if _NAME.fullmatch(name) and "\0" not in value}
    lines = []
    for name, value in kept.items():
        if with_devices and name in MASKS:
            lines.append(f'test -n "${{{name}+set}}" || {name}={shlex.quote(value)}; export {name}')
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    return _RUN.format(
        exports="\n".join(lines),
        told=shlex.quote(f"{job}/{TOLD}"),
        terminated=TERMINATED,
        work=shlex.quote(work),
        not_executable=NOT_EXECUTABLE,
        command=" ".join(shlex.quote(word) for word in argv),
    )


def one_script(script: str) -> str:
    """For the batch system to keep: it may be read by others, and says nothing but where the rest is."""
    return f"#!/bin/sh\nexec /bin/sh {shlex.quote(script)}\n"


def many_script(listed: str, variable: str) -> str:
    """The same for several: the one whose turn it is stands in this line of a file."""
    return f'#!/bin/sh\nexec /bin/sh "$(sed -n "$(({variable} + 1))p" {shlex.quote(listed)})"\n'
