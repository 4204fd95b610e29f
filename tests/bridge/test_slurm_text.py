"""What Slurm prints, as several versions of it and several sites print it."""

import pytest

from ostler.bridge import slurm_text as text
from ostler.bridge.base import Sight
from ostler.bridge.slurm_text import Partition

MAIN = Partition("main", True, 0.0)

IDLE_22_05 = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=1 CPUEfctv=4 CPUTot=4 CPULoad=9.41 AvailableFeatures=big,ib "
    "ActiveFeatures=big,ib Gres=gpu:a100:2 GresDrain=N/A GresUsed=gpu:a100:1(IDX:0) NodeAddr=10.0.0.1 NodeHostName=vm "
    "Port=17821 Version=22.05.8 OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=4000 AllocMem=100 FreeMem=16996 "
    "Sockets=4 Boards=1 State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=main,all  "
    "BootTime=2026-11-15T03:00:01 SlurmdStartTime=2026-11-15T18:35:38 CfgTRES=cpu=4,mem=4000M,billing=4 "
    "AllocTRES=cpu=1,mem=100M CapWatts=n/a CurrentWatts=0 AveWatts=0"
)
DRAINED_20_11 = (
    "NodeName=gpu07 Arch=x86_64 CoresPerSocket=16  CPUAlloc=0 CPUTot=64 CPULoad=0.01 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:tesla_v100:4(S:0-1) GresDrain=N/A GresUsed=gpu:tesla_v100:0(IDX:N/A) "
    "NodeAddr=gpu07 NodeHostName=gpu07 Version=20.11.9 OS=Linux 3.10.0 #1 SMP Tue Jun 8  RealMemory=385000 AllocMem=0 "
    "FreeMem=380112 Sockets=2 Boards=1 MemSpecLimit=5000 State=IDLE+DRAIN ThreadsPerCore=2 TmpDisk=0 Weight=1 "
    "Owner=N/A MCS_label=N/A Partitions=main  BootTime=2026-01-01T00:00:00 CfgTRES=cpu=64,mem=385000M,gres/gpu=4 "
    "AllocTRES= Reason=GPU 3 fell off the bus [root@2026-10-01T09:12:44]"
)
SILENT_24_05 = (
    "NodeName=c1 Arch=x86_64 CoresPerSocket=24  CPUAlloc=0 CPUEfctv=46 CPUTot=48 CPULoad=0.00 AvailableFeatures=cpu "
    "ActiveFeatures=cpu Gres=(null) GresDrain=N/A GresUsed=gpu:0 NodeAddr=10.1.0.1 NodeHostName=c1 Version=24.05.4 "
    "RealMemory=1 AllocMem=0 FreeMem=N/A Sockets=2 Boards=1 CoreSpecCount=1 CPUSpecList=46-47 State=IDLE*+CLOUD "
    "ThreadsPerCore=1 Partitions=main  BootTime=None CfgTRES=cpu=46,mem=1M,billing=46 AllocTRES= "
    "Reason=Not responding [slurm@2026-11-01T10:00:00]"
)
WITHOUT_DETAILS_19_05 = (
    "NodeName=old CPUAlloc=2 CPUTot=8 ActiveFeatures=(null) Gres=gpu:2 NodeAddr=old RealMemory=16000 AllocMem=8000 "
    "State=MIXED Partitions=main CfgTRES=cpu=8,mem=16000M,gres/gpu=2 AllocTRES=cpu=2,mem=8000M,gres/gpu=1"
)


def test_a_node_is_read_with_what_is_free_of_it() -> None:
    (node,) = text.nodes(IDLE_22_05, MAIN)
    assert (node.name, node.address, node.arch, node.closed) == ("n1", "10.0.0.1", "x86_64", "")
    assert (node.cores, node.free_cores, node.memory_mib, node.free_mib) == (4, 3, 4000, 3900)
    assert (node.gpu_type, node.gpus, node.free_gpus) == ("a100", 2, 1)
    assert node.labels == {"slurm.partition": "main", "slurm.feature.big": "yes", "slurm.feature.ib": "yes"}


def test_a_drained_node_is_closed_for_the_reason_that_was_given_and_its_own_memory_is_not_offered() -> None:
    (node,) = text.nodes(DRAINED_20_11, MAIN)
    assert node.closed == "the node is drained in Slurm (GPU 3 fell off the bus)"
    assert (node.cores, node.memory_mib, node.gpus, node.free_gpus) == (64, 380_000, 4, 4)


def test_a_node_that_does_not_respond_is_closed_and_one_of_unknown_memory_has_none_to_ask_for() -> None:
    (node,) = text.nodes(SILENT_24_05, MAIN)
    assert node.closed == "the node is not responding in Slurm (Not responding)"
    assert (node.cores, node.memory_mib, node.gpus) == (46, 0, 0)


def test_where_gres_used_is_not_told_the_allocated_tres_are_counted() -> None:
    (node,) = text.nodes(WITHOUT_DETAILS_19_05, MAIN)
    assert (node.gpu_type, node.gpus, node.free_gpus, node.free_cores) == ("", 2, 1, 6)


def test_only_the_partition_s_nodes_are_read_and_one_that_is_down_closes_them() -> None:
    everything = "\n".join([IDLE_22_05, DRAINED_20_11, SILENT_24_05, "", "no node at all"])
    assert [node.name for node in text.nodes(everything, Partition("all", True, 0.0))] == ["n1"]
    (node,) = text.nodes(IDLE_22_05, Partition("all", False, 3600.0))
    assert (node.closed, node.limit_s) == ("partition all is down in Slurm", 3600.0)


@pytest.mark.parametrize(
    ("state", "closed"),
    [
        ("IDLE", ""),
        ("MIXED+PLANNED", ""),
        ("ALLOCATED", ""),
        ("IDLE+CLOUD+POWERED_DOWN", ""),
        ("DOWN*", "down"),
        ("MIXED+DRAIN", "drained"),
        ("IDLE+MAINT", "in maintenance"),
        ("DOWN+NOT_RESPONDING", "down"),
        ("IDLE+INVALID_REG+DRAIN", "drained"),
    ],
)
def test_the_states_in_which_a_node_takes_nothing(state: str, closed: str) -> None:
    (node,) = text.nodes(f"NodeName=x CPUTot=1 State={state} Partitions=main", MAIN)
    assert node.closed == (f"the node is {closed} in Slurm" if closed else "")


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("", {}),
        ("(null)", {}),
        ("gpu:4", {"": 4}),
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:a100:2(IDX:0,3),gpu:v100:1(IDX:5)", {"a100": 2, "v100": 1}),
        ("gpu:a100_1g.5gb:7", {"a100_1g.5gb": 7}),
        ("gpu:2080ti:8(S:0-1)", {"2080ti": 8}),
        ("gpu:a100:4,gpu:1080ti:8", {"a100": 4, "1080ti": 8}),
        ("craynetwork:4,gpu:h100:8,shard:h100:32", {"h100": 8}),
        ("cpu=8,mem=64G,node=1,gres/gpu=2", {"": 2}),
        ("gres/gpu:a100=2", {"a100": 2}),
    ],
)
def test_gres_in_all_its_spellings(told: str, found: dict[str, int]) -> None:
    assert dict(text.gpus(told)) == found


def test_of_a_node_with_two_types_of_gpus_the_larger_part_is_offered() -> None:
    line = (
        "NodeName=x CPUTot=1 Gres=gpu:a100:2,gpu:v100:6 GresUsed=gpu:a100:1(IDX:0),gpu:v100:2(IDX:2-3) Partitions=main"
    )
    (node,) = text.nodes(line, MAIN)
    assert (node.gpu_type, node.gpus, node.free_gpus) == ("v100", 6, 4)


def test_jobs_are_read_whatever_others_have_put_into_their_comments() -> None:
    told = (
        "2_0|FAILED|NonZeroExitCode|ostler:b:@x\n"
        "3|PENDING|Resources|a | b || c\n"
        "4|RUNNING|None|(null)\n"
        "5|COMPLETING|None|ostler:b:y\n"
        "6|PENDING|None|ostler:b:z\n"
        "garbage\n"
    )
    found = {job.id: (job.sight.phase, job.sight.reason, job.comment) for job in text.jobs(told)}
    assert found == {
        "2_0": ("over", "FAILED: NonZeroExitCode", "ostler:b:@x"),
        "3": ("waiting", "Resources", "a | b || c"),
        "4": ("running", "None", "(null)"),
        "5": ("running", "None", "ostler:b:y"),
        "6": ("waiting", "pending", "ostler:b:z"),
    }


@pytest.mark.parametrize(
    ("state", "phase", "fate"),
    [
        ("PENDING", "waiting", "exited"),
        ("CONFIGURING", "waiting", "exited"),
        ("REQUEUED", "waiting", "exited"),
        ("SUSPENDED", "running", "exited"),
        ("COMPLETED", "over", "exited"),
        ("TIMEOUT", "over", "out of time"),
        ("OUT_OF_MEMORY", "over", "out of memory"),
        ("CANCELLED by 1000", "over", "cancelled"),
        ("CANCELLED+", "over", "cancelled"),
        ("PREEMPTED", "over", "preempted"),
        ("NODE_FAIL", "over", "lost"),
    ],
)
def test_each_state_of_a_job_has_its_phase_and_its_fate(state: str, phase: str, fate: str) -> None:
    found = text.sight(state)
    assert (found.phase, found.fate) == (phase, fate)


def test_what_accounting_remembers_is_read_with_its_exit_codes() -> None:
    told = "12|COMPLETED|0:0\n13_4|FAILED|3:0\n14|OUT_OF_MEMORY|0:125\n15|CANCELLED by 0|0:15\n"
    found = text.accounts(told)
    assert found["12"] == Sight(phase="over", reason="COMPLETED", exit_code=0)
    assert [found[job].exit_code for job in ("13_4", "14", "15")] == [3, 253, 143]
    assert found["15"].fate == "cancelled"


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("infinite", 0),
        ("UNLIMITED", 0),
        ("n/a", 0),
        ("30", 1800),
        ("30:00", 1800),
        ("4:00:00", 14_400),
        ("1-00:00:00", 86_400),
        ("2-12", 216_000),
        ("365-00:00:00", 31_536_000),
    ],
)
def test_times_in_all_their_spellings(told: str, seconds: float) -> None:
    assert text.seconds(told) == seconds


def test_partitions_are_read_with_their_limits() -> None:
    assert text.partitions("gpu|up|2-00:00:00\ndebug|down|30:00\n") == [
        Partition("gpu", True, 172_800.0),
        Partition("debug", False, 1800.0),
    ]


def test_memory_is_asked_for_only_where_a_job_would_else_get_all_of_its_node() -> None:
    counted = {"SelectTypeParameters": "CR_CORE_MEMORY", "DefMemPerNode": "UNLIMITED"}
    assert not text.default_memory(counted)
    assert text.default_memory(counted | {"DefMemPerCPU": "4000"})
    assert text.default_memory({"SelectTypeParameters": "CR_CPU"})
    told = "Configuration data as of 2026-11-15T18:36:01\nSelectTypeParameters    = CR_CPU_MEMORY\nDefMemPerNode = UNLIMITED"
    assert not text.default_memory(text.settings(told))
