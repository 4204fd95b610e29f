from typing import Any

import pytest

from ostler.domain.worker import Capabilities, DeviceInfo
from ostler.wire.messages import JobAssign, Peer
from ostler.worker.environment import Folders, inherited, task_environment, visible_devices
from ostler.worker.orders import NotUnderstood, understand

FOLDERS = Folders("/a/out", "/c/t")
NVIDIA = Capabilities(
    gpu_backend="nvidia",
    gpu_count=2,
    devices=[DeviceInfo(index=0, uuid="GPU-aa", vram_gb=8), DeviceInfo(index=1, uuid="GPU-bb", vram_gb=8)],
)
UNNAMED = Capabilities(gpu_backend="nvidia", gpu_count=2, vram_gb=16)
HIGH_INDICES = Capabilities(gpu_backend="nvidia", gpu_count=2, devices=[DeviceInfo(index=2), DeviceInfo(index=3)])
MIG = Capabilities(gpu_backend="nvidia", gpu_count=1, devices=[DeviceInfo(index=102, uuid="MIG-cc")])
ROCM = Capabilities(
    gpu_backend="rocm", gpu_count=2, devices=[DeviceInfo(index=1, uuid="GPU-1a"), DeviceInfo(index=3, uuid="GPU-3c")]
)


def environment(base: dict[str, str] | None = None, **more: Any) -> dict[str, str]:
    own = {name: more.pop(name) for name in ("index", "rank", "peers", "master_port") if name in more}
    message = JobAssign(
        spec={"id": "job", "command": ["true"], **more}, attempt="a1", remaining_time=0, devices=[], **own
    )
    base = base or {}
    return {**base, **task_environment(base, understand(message), Capabilities(), FOLDERS, "http://hub:7600")}


@pytest.mark.parametrize(
    ("base", "granted", "capabilities", "seen"),
    [
        ({}, [1], NVIDIA, "GPU-bb"),
        ({}, [0, 1], NVIDIA, "GPU-aa,GPU-bb"),
        ({}, [], NVIDIA, ""),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, [], NVIDIA, ""),
        ({}, [], Capabilities(), ""),
        ({}, [1], UNNAMED, "1"),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, [1], UNNAMED, "5"),
        ({"CUDA_VISIBLE_DEVICES": "1,5"}, [0, 1], UNNAMED, "1,5"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-x,GPU-y"}, [0], UNNAMED, "GPU-x"),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, [3], HIGH_INDICES, "3"),
        ({}, [102], MIG, "MIG-cc"),
    ],
)
def test_a_task_sees_the_gpus_it_was_granted_and_no_other(
    base: dict[str, str], granted: list[int], capabilities: Capabilities, seen: str
) -> None:
    found = visible_devices(base, granted, capabilities)
    assert found == {"CUDA_VISIBLE_DEVICES": seen, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("base", "granted", "hip", "cuda"),
    [
        ({}, [3], "3", "3"),
        ({}, [], "-1", ""),
        ({"ROCR_VISIBLE_DEVICES": "1,3"}, [3], "1", "1"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-1A,GPU-3C"}, [1, 3], "0,1", "0,1"),
    ],
)
def test_on_rocm_the_two_masks_agree_and_count_what_the_drivers_own_mask_leaves(
    base: dict[str, str], granted: list[int], hip: str, cuda: str
) -> None:
    found = visible_devices(base, granted, ROCM)
    assert (found["HIP_VISIBLE_DEVICES"], found["CUDA_VISIBLE_DEVICES"]) == (hip, cuda)


def test_no_secret_of_the_worker_reaches_a_task() -> None:
    own = {
        "PATH": "/bin",
        "OSTLER_TOKEN": "s3cret",
        "OSTLER_STATE_DIR": "/x",
        "HF_TOKEN": "h",
        "DB_PASSWORD": "p",
        "AWS_SECRET_ACCESS_KEY": "k",
        "OPENAI_API_KEY": "o",
        "AWS_ACCESS_KEY_ID": "i",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/keys/google.json",
        "REDIS_AUTH": "r",
        "PGPASSWORD": "p",
        "MYSQL_PWD": "p",
        "GITHUB_PAT": "g",
        "SENTRY_DSN": "https://abc@sentry/1",
        "DATABASE_URL": "postgresql://me:hunter2@db/x",
        "HTTPS_PROXY": "HTTP://me:hunter2@proxy:3128",
        "ANYTHING": "Bearer s3cret",
        "NOTIFY_SOCKET": "/run/n",
        "TOKENIZERS_PARALLELISM": "false",
        "KEYBOARD": "us",
        "PWD": "/x",
        "NO_PROXY": "http://a.example:80/@x",
    }
    left = ("PATH", "TOKENIZERS_PARALLELISM", "KEYBOARD", "PWD", "NO_PROXY")
    assert inherited(own, "s3cret") == {name: own[name] for name in left}


def test_a_task_finds_who_it_is_and_where_its_things_are() -> None:
    found = environment({"PATH": "/bin"}, index=7, id="job.7", env={"A": "b", "HF_TOKEN": "mine"})
    assert found == {
        "PATH": "/bin",
        "A": "b",
        "HF_TOKEN": "mine",
        "PYTHONUNBUFFERED": "1",
        "OSTLER_JOB_ID": "job",
        "OSTLER_TASK_ID": "job.7",
        "OSTLER_ATTEMPT": "a1",
        "OSTLER_INDEX": "7",
        "OSTLER_HUB": "http://hub:7600",
        "OSTLER_OUT": "/a/out",
        "OSTLER_CHECKPOINT": "/c/t",
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_a_task_of_no_array_has_no_index() -> None:
    assert "OSTLER_INDEX" not in environment()


def test_a_member_of_a_gang_finds_the_others_by_torchruns_names() -> None:
    peers = [Peer(rank=0, host="ada"), Peer(rank=1, host="10.0.0.7"), Peer(rank=2, host="bo")]
    found = environment(rank=1, peers=peers, master_port=29500, env={"RANK": "9", "MASTER_ADDR": "evil"})
    names = ("RANK", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", "NNODES", "MASTER_ADDR", "MASTER_PORT")
    assert [found[name] for name in names] == ["1", "1", "0", "3", "3", "ada", "29500"]
    assert not set(names) & environment().keys()


@pytest.mark.parametrize("peers", [[], [Peer(rank=0, host="ada")]])
def test_a_rank_that_is_not_in_the_gang_is_not_understood(peers: list[Peer]) -> None:
    with pytest.raises(NotUnderstood, match="rank 1 is not among"):
        environment(rank=1, peers=peers)


def test_the_user_overrides_what_is_inherited_but_neither_the_grant_nor_the_identity() -> None:
    wanted = {"PATH": "/mine", "PYTHONUNBUFFERED": "", "CUDA_VISIBLE_DEVICES": "0", "OSTLER_TASK_ID": "other"}
    found = environment({"PATH": "/bin"}, env=wanted)
    assert (found["PATH"], found["PYTHONUNBUFFERED"]) == ("/mine", "")
    assert (found["CUDA_VISIBLE_DEVICES"], found["OSTLER_TASK_ID"]) == ("", "job")


@pytest.mark.parametrize(
    ("spec", "threads"),
    [
        ({}, None),
        ({"min_cpu_cores": 4}, "4"),
        ({"min_cpu_cores": 2.5}, "2"),
        ({"min_cpu_cores": 0.5}, "1"),
        ({"min_cpu_cores": 4, "env": {"OMP_NUM_THREADS": "1"}}, "1"),
    ],
)
def test_threads_follow_the_cores_that_were_asked_for(spec: dict[str, Any], threads: str | None) -> None:
    assert environment(**spec).get("OMP_NUM_THREADS") == threads


def test_a_secret_as_a_variable_widens_no_grant_and_moves_no_folder() -> None:
    message = JobAssign(spec={"id": "job", "command": ["true"]}, attempt="a1", remaining_time=0, devices=[1])
    given = {"OSTLER_SECRETS": "/s", "HF_TOKEN": "x", "CUDA_VISIBLE_DEVICES": "0,1", "OSTLER_OUT": "/elsewhere"}
    env = task_environment({"HF_TOKEN": "-"}, understand(message), NVIDIA, FOLDERS, "http://hub:7600", 0, given)
    assert (env["CUDA_VISIBLE_DEVICES"], env["OSTLER_OUT"]) == ("GPU-bb", "/a/out")
    assert (env["OSTLER_SECRETS"], env["HF_TOKEN"]) == ("/s", "x")
