"""Slurm: munged, slurmctld and slurmd of our own in a temporary folder, one node on loopback, no accounting."""

import getpass
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.peers.measure import Peer, measure, until

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")
SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"
SETTINGS = """ClusterName=bench
SlurmctldHost={node}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/state/slurmctld.pid
SlurmdPidFile={folder}/state/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldDebug=error
SlurmdDebug=error
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,default_queue_depth=1000,bf_interval=5
PriorityType=priority/basic
MaxJobCount=250000
MaxArraySize=200001
MinJobAge=60
MessageTimeout=60
LaunchParameters=disable_send_gids
Epilog=/bin/true
NodeName={node} NodeAddr=127.0.0.1 NodeHostname={node} CPUs=2 State=UNKNOWN
NodeName=ghost NodeAddr=127.0.0.1 NodeHostname={node} Port=16819 CPUs=64 Feature=ghost State=DOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""The epilog makes every end an event that has the scheduler run; without one it looks once a second."""


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = os.uname().nodename
        for part in ("state", "spool", "munge"):
            (folder / part).mkdir(mode=0o755)
        folder.chmod(0o755)
        text = SETTINGS.format(node=self.node, user=getpass.getuser(), folder=folder)
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    @contextmanager
    def up(self) -> Iterator[int]:
        """The number of the controller's process."""
        at = self.folder / "munge"
        files = [f"--{name}-file={at / name}" for name in ("pid", "log", "seed")]
        with ExitStack() as running:
            running.enter_context(
                self.program("munged", "-F", "--force", f"--key-file={at}.key", f"--socket={at / 'sock'}", *files)
            )
            until((at / "sock").exists, "munged's socket")
            controller = running.enter_context(self.program("slurmctld", "-D", "-c", "-i"))
            until(lambda: self.ask("scontrol", "ping", check=False).count("UP"), "an answer of slurmctld", 20, 0.2)
            running.enter_context(self.program("slurmd", "-D", "-N", self.node))
            until(lambda: "idle" in self.state(), "a node that is ready", 30, 0.2)
            yield controller

    @contextmanager
    def program(self, *command: str) -> Iterator[int]:
        with open(self.folder / f"{command[0]}.out", "wb") as output:
            process = subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=output, stderr=output)
        try:
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ask(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, env=self.environment, cwd="/", capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise SystemExit(f"{command[0]}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def state(self) -> str:
        return self.ask("sinfo", "-h", "-n", self.node, "-o", "%T", check=False)

    def array(self, count: int, *more: str) -> str:
        wanted = (f"--array=1-{count}", "--wrap=true", "--output=/dev/null", "--parsable", *more)
        return self.ask("sbatch", "--ntasks=1", *wanted).strip()

    def run(self, count: int) -> None:
        job = self.array(count)
        while left := self.count(job, "PD,R,CG"):
            time.sleep(min(0.5, max(0.05, left / 200)))
        if (done := self.count(job, "CD")) != count:
            raise SystemExit(f"of {count} jobs, {done} completed")

    def count(self, job: str, states: str) -> int:
        return len(self.ask("squeue", "-h", "-r", "-j", job, "-t", states, "-o", "%i").split())

    def once(self) -> None:
        self.ask("srun", "--quiet", "--ntasks=1", "true")

    def queue(self, count: int) -> None:
        self.array(count, "--constraint=ghost")


def main() -> None:
    os.environ["PATH"] += os.pathsep + SYSTEM
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)} not installed here")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = Cluster(Path(folder))
        with cluster.up() as controller:
            peer = Peer(
                version=cluster.ask("sinfo", "-V").split()[-1],
                setup="one node of 2 CPUs, no accounting, every end wakes the scheduler; jobs as one array, "
                "one alone by `srun`. It has no calls on warm workers",
                jobs=cluster.run,
                once=cluster.once,
                queue={"one array": cluster.queue},
                processes=[controller],
                at_most={"W1": 150},
            )
            measure(peer)


if __name__ == "__main__":
    main()
