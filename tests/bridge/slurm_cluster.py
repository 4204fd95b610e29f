"""A Slurm of our own: its daemons in a folder, two nodes on this machine, no accounting."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from benchmarks.peers.measure import until
from benchmarks.peers.on_slurm import NEEDED, SYSTEM, Cluster
from tests.ports import free_ports

NODES = ("one", "two")
CORES, MEMORY_MIB = 16, 16_000
OURS = ("NodeName", "SlurmctldPort", "SlurmdPort", "SlurmdSpool", "SlurmdPid", "SlurmdLog", "SelectTypeP", "Proctrack")
"""Settings that are otherwise here than in the one that is measured."""


class TwoNodes(Cluster):
    """The first has two GPUs; they are only names. Memory is counted, and nobody is given any who does not ask."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        control, common, *ports = free_ports(2 + len(NODES))
        text = (folder / "slurm.conf").read_text().splitlines()
        kept = [line for line in text if not line.startswith((*OURS, "PartitionName"))]
        has = f"NodeAddr=127.0.0.1 NodeHostname={self.node} CPUs={CORES} RealMemory={MEMORY_MIB} State=UNKNOWN"
        of = {"one": "Gres=gpu:a100:2 Feature=big,ib", "two": ""}
        own = [
            f"SlurmctldPort={control}",
            f"SlurmdPort={common}",
            f"SlurmdSpoolDir={folder}/spool.%n",
            f"SlurmdPidFile={folder}/state/slurmd.%n.pid",
            f"SlurmdLogFile={folder}/slurmd.%n.log",
            "SelectTypeParameters=CR_CPU_Memory",
            "ProctrackType=proctrack/linuxproc",
            "SlurmdParameters=config_overrides",
            "GresTypes=gpu",
            "KillWait=5",
            *(f"NodeName={name} Port={port} {has} {of[name]}" for name, port in zip(NODES, ports, strict=True)),
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        ]
        (folder / "slurm.conf").write_text("\n".join([*kept, *own, ""]))
        devices = [f"NodeName=one Name=gpu Type=a100 File={device}\n" for device in ("/dev/null", "/dev/zero")]
        (folder / "gres.conf").write_text("".join(devices))
        for name in NODES:
            (folder / f"spool.{name}").mkdir()

    @contextmanager
    def up(self) -> Iterator[int]:
        at = self.folder / "munge"
        files = [f"--{name}-file={at / name}" for name in ("pid", "log", "seed")]
        with ExitStack() as running:
            running.enter_context(
                self.program("munged", "-F", "--force", f"--key-file={at}.key", f"--socket={at / 'sock'}", *files)
            )
            until((at / "sock").exists, "munged's socket")
            controller = running.enter_context(self.program("slurmctld", "-D", "-c", "-i"))
            until(lambda: self.ask("scontrol", "ping", check=False).count("UP"), "an answer of slurmctld", 20, 0.2)
            for name in NODES:
                running.enter_context(self.program("slurmd", "-D", "-N", name))
            until(lambda: self.ask("sinfo", "-h", "-o", "%T", check=False).split() == ["idle"], "its nodes", 30, 0.2)
            yield controller


@contextmanager
def slurm(folder: Path) -> Iterator[TwoNodes]:
    """Ready; the test is skipped where Slurm is not installed."""
    os.environ["PATH"] += os.pathsep + SYSTEM
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip("Slurm is missing: apt-get install slurm-wlm munge")
    cluster = TwoNodes(folder)
    with cluster.up():
        yield cluster
