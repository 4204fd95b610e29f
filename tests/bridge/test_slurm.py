"""A real Slurm of two nodes, a real hub, and the bridge between them."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.bridge.slurm_cluster import CORES, TwoNodes, slurm
from tests.diary import Diary
from tests.process_fleet import ProcessFleet, until

from ostler.bridge.offering import OTHERS

WORKERS = ("lab-one", "lab-two")
WAIT_S = 60.0
Document = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


class SlurmFleet(ProcessFleet):
    """Its only workers are the nodes of a Slurm."""

    patience_s = WAIT_S

    def __init__(self, folder: Path, cluster: TwoNodes) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.environment |= {"SLURM_CONF": cluster.environment["SLURM_CONF"], "OSTLER_SHARED_SECRET": "never shown"}

    def start_bridge(self, name: str, *more: str) -> None:
        options = ("--partition", "main", "--name", name, "--look-seconds", "0.1", "--drain-seconds", "0")
        self._start(name, ("bridge", "slurm", *options, "--hub", self.url, *more))

    def slurm_jobs(self) -> list[str]:
        """Every job that Slurm knows, and how it is."""
        return self.cluster.ask("squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%N|%k").split()

    def is_running(self) -> bool:
        return any("|RUNNING|" in job or "|COMPLETING|" in job for job in self.slurm_jobs())

    def placed(self, *specs: Document) -> list[str]:
        found: list[str] = self.hub.submit(list(specs))["ids"]
        return found

    def finished(self, *jobs: str) -> list[Document]:
        return [self.client.wait(job, timeout=WAIT_S) for job in jobs]

    def said(self, job: str) -> str:
        return b"".join(self.hub.logs(job)).decode()

    def reason(self, job: str) -> str:
        return str(self.hub.job(job)["reason"])

    def attempt_of(self, job: str) -> str:
        return str(self.hub.job(job)["attempts"][-1]["attempt"])

    def await_begun(self, diary: Diary, *tasks: str) -> None:
        until(lambda: set(tasks) <= diary.seen("begin").keys(), f"{tasks} have begun: {self.log_of('lab')}", WAIT_S)


def shell(line: str, **more: Any) -> Document:
    return {"command": ["sh", "-c", line], "min_cpu_cores": 1, **more}


@contextmanager
def bridged(folder: Path, cluster: TwoNodes, *more: str) -> Iterator[SlurmFleet]:
    fleet = SlurmFleet(folder, cluster)
    try:
        fleet.start_hub()
        fleet.start_bridge("lab", *more)
        fleet.await_workers(*WORKERS)
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def fleet(cluster: TwoNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmFleet]:
    with bridged(tmp_path_factory.mktemp("fleet"), cluster) as found:
        yield found


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path / "diary")


def test_the_workers_are_the_nodes_and_offer_what_those_have(fleet: SlurmFleet) -> None:
    one, two = (fleet.worker(name) for name in WORKERS)
    assert [(found["cpu_count"], found["gpu_count"], found["total_slots"]) for found in (one, two)] == [
        (CORES, 2, CORES),
        (CORES, 0, CORES),
    ]
    assert one["labels"] | {"slurm.partition": "main", "slurm.feature.ib": "yes"} == one["labels"]
    assert {device["name"] for device in one["devices"]} == {"a100"}


def test_of_fifty_jobs_each_runs_once_and_ends_as_it_should(fleet: SlurmFleet, diary: Diary) -> None:
    diary.open("all")
    jobs = fleet.placed(*(diary.spec("all", name=f"fifty-{index}") for index in range(50)))
    assert {job["state"] for job in fleet.finished(*jobs)} == {"succeeded"}
    assert set(diary.seen("begin").values()) == {1}
    assert set(diary.seen("end")) == set(jobs)
    assert all(fleet.ends_told(job) == {job: ["succeeded"]} for job in jobs)
    fleet.await_free(*WORKERS)


def test_an_array_is_submitted_in_a_few_calls_and_each_task_knows_its_index(fleet: SlurmFleet) -> None:
    before = len({job.partition("_")[0] for job in fleet.slurm_jobs()})
    (job,) = fleet.placed(shell("echo $OSTLER_INDEX; exit $((OSTLER_INDEX == 7))", array=24))
    (ended,) = fleet.finished(job)
    assert ended["counts"] | {"succeeded": 23, "failed": 1} == ended["counts"]
    assert fleet.hub.job(f"{job}.7")["exit_code"] == 1
    assert fleet.said(f"{job}.11") == "11\n"
    assert len({job.partition("_")[0] for job in fleet.slurm_jobs()}) - before < 12


def test_values_outputs_logs_and_failures_come_over_and_nothing_of_the_bridge_s_own_goes_there(
    fleet: SlurmFleet,
) -> None:
    value = fleet.client.submit(pow, 3, 4, resources={"cpu": 1})
    made, failed, absent = fleet.placed(
        shell("echo made; echo it > $OSTLER_OUT/file; env"),
        shell("echo it broke; exit 9"),
        {"command": ["no-such-program"], "min_cpu_cores": 1},
    )
    assert value.result(timeout=WAIT_S) == 81
    one, other, third = fleet.finished(made, failed, absent)
    assert one["artifact_id"]
    assert fleet.said(made).startswith("made\n")
    assert "SLURM" not in fleet.said(made)
    assert "never shown" not in fleet.said(made)
    assert (other["state"], other["exit_code"], other["reason"]) == ("failed", 9, "exit code 9: it broke")
    assert (third["state"], third["exit_code"]) == ("failed", 127)
    assert "no-such-program" in third["reason"]


def test_gpus_are_slurm_s_to_give_out_and_the_task_sees_those_it_got(fleet: SlurmFleet, diary: Diary) -> None:
    first = fleet.placed(diary.spec("gpu", gpu_count=1, gpu_type="A100"))
    fleet.await_begun(diary, *first)
    shown, none = fleet.placed(
        shell("echo $CUDA_VISIBLE_DEVICES", gpu_count=1), shell('echo "${CUDA_VISIBLE_DEVICES-x}"')
    )
    fleet.finished(shown, none)
    assert (fleet.said(shown), fleet.said(none)) == ("1\n", "\n")
    diary.open("gpu")
    fleet.finished(*first)


def test_a_gang_gets_a_node_for_each_member(fleet: SlurmFleet) -> None:
    (job,) = fleet.placed(shell('echo "$RANK of $WORLD_SIZE at $MASTER_ADDR"; sleep 0.5', node_count=2))
    (ended,) = fleet.finished(job)
    assert ended["state"] == "succeeded"
    members = [f"{job}.{rank}" for rank in (0, 1)]
    assert [fleet.said(member) for member in members] == ["0 of 2 at 127.0.0.1\n", "1 of 2 at 127.0.0.1\n"]
    assert {fleet.hub.job(member)["worker"] for member in members} == set(WORKERS)


def test_a_cancel_ends_the_job_in_slurm_and_the_room_is_free_when_it_is_gone(fleet: SlurmFleet, diary: Diary) -> None:
    stubborn = "trap : TERM; echo begin $OSTLER_TASK_ID x >> $DIARY/lines; while :; do sleep 0.1; done"
    jobs = fleet.placed(diary.spec("never"), diary.spec("never", command=["sh", "-c", stubborn]))
    fleet.await_begun(diary, *jobs)
    for job in jobs:
        fleet.hub.cancel(job)
    assert {fleet.hub.job(job)["state"] for job in jobs} == {"cancelled"}
    until(lambda: not fleet.is_running(), "both are gone", WAIT_S)
    fleet.await_free(*WORKERS)


def test_what_a_stranger_cancels_has_failed_and_says_so_and_what_its_node_takes_with_it_runs_again(
    fleet: SlurmFleet, diary: Diary
) -> None:
    cancelled, lost = fleet.placed(diary.spec("stranger", min_cpu_cores=2), diary.spec("down"))
    fleet.await_begun(diary, cancelled, lost)
    node = fleet.hub.job(lost)["worker"].removeprefix("lab-")
    number = next(job.partition("|")[0] for job in fleet.slurm_jobs() if fleet.attempt_of(cancelled) in job)
    fleet.cluster.ask("scancel", number)
    (ended,) = fleet.finished(cancelled)
    assert (ended["state"], ended["exit_code"]) == ("failed", 143)
    assert ended["reason"].endswith("was cancelled there, by somebody else")
    first = fleet.attempt_of(lost)
    fleet.cluster.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=on fire")
    until(lambda: fleet.attempt_of(lost) != first, "it is placed again", WAIT_S)
    diary.open("down")
    (again,) = fleet.finished(lost)
    assert (again["state"], [attempt["state"] for attempt in again["attempts"]]) == (
        "succeeded",
        ["returned", "succeeded"],
    )
    fleet.cluster.ask("scontrol", "update", f"nodename={node}", "state=resume", check=False)  # it may be up by itself
    fleet.await_free(*WORKERS)


def test_what_others_hold_is_not_offered(fleet: SlurmFleet) -> None:
    asked = ("--nodelist=one", f"--cpus-per-task={CORES - 4}", "--mem=1M", "--gres=gpu:a100:1")
    stranger = fleet.cluster.ask("sbatch", "--parsable", *asked, "--output=/dev/null", "--wrap=sleep 600").strip()
    until(lambda: fleet.worker("lab-one")["cpu_count"] == 4, "the stranger's cores are not offered", WAIT_S)
    devices = fleet.worker("lab-one")["capabilities"]["devices"]
    assert Counter(device.get("quarantine", "") for device in devices) == {"": 1, OTHERS: 1}
    fleet.cluster.ask("scancel", stranger)
    fleet.cluster.ask("scontrol", "update", "nodename=two", "state=drain", "reason=looked at")
    until(lambda: fleet.worker("lab-two")["cpu_count"] == 0, "nothing is offered of a node that is drained", WAIT_S)
    fleet.cluster.ask("scontrol", "update", "nodename=two", "state=resume")
    fleet.await_free(*WORKERS)


def test_what_waits_in_slurm_s_queue_is_not_running_says_why_and_keeps_its_place_while_the_hub_is_away(
    fleet: SlurmFleet, diary: Diary
) -> None:
    fleet.start_bridge("held", "--label", "held=yes", "--sbatch=--hold", "--nodes", "two")
    fleet.await_workers("held-two")
    (job,) = fleet.placed(diary.spec("late", labels=["held = yes"]))
    until(lambda: "JobHeldUser" in fleet.reason(job), "a reason to read", WAIT_S)
    number = re.search(r"its turn in Slurm \(job (\d+): ", fleet.reason(job))
    assert number is not None
    assert fleet.hub.job(job)["state"] == "assigned"
    assert "has not begun: it waits for its turn in Slurm" in fleet.hub.why(job)["summary"]
    fleet.kill("hub")
    fleet.start_again("hub")
    until(lambda: fleet.hub.job(job)["state"] == "assigned", "its worker has come back with it", WAIT_S)
    assert not diary.seen("begin")
    fleet.cluster.ask("scontrol", "release", number[1])
    fleet.await_begun(diary, job)
    until(lambda: (fleet.hub.job(job)["state"], fleet.reason(job)) == ("running", ""), "it runs", WAIT_S)
    diary.open("late")
    (ended,) = fleet.finished(job)
    assert (ended["state"], len(ended["attempts"])) == ("succeeded", 1)
    assert fleet.terminate("held") == 0


def test_a_bridge_that_is_killed_finds_its_jobs_again_and_a_hub_that_is_away_changes_nothing_for_them(
    fleet: SlurmFleet, diary: Diary
) -> None:
    jobs = fleet.placed(*(diary.spec(f"gate-{index}") for index in range(6)))
    fleet.await_begun(diary, *jobs)
    fleet.kill("lab")
    diary.open("gate-0", "gate-1")
    diary.await_ended(*jobs[:2])
    fleet.start_again("lab")
    assert [job["state"] for job in fleet.finished(*jobs[:2])] == ["succeeded"] * 2
    fleet.kill("hub")
    diary.open("gate-2", "gate-3")
    diary.await_ended(*jobs[2:4])
    assert fleet.is_running()
    fleet.start_again("hub")
    diary.open("gate-4", "gate-5")
    assert [job["state"] for job in fleet.finished(*jobs[2:])] == ["succeeded"] * 4
    assert set(diary.seen("begin").values()) == {1}
    assert all(fleet.ends_told(job) == {job: ["succeeded"]} for job in jobs)


def test_a_bridge_that_leaves_for_good_ends_its_jobs_and_hands_them_back(fleet: SlurmFleet, diary: Diary) -> None:
    (job,) = fleet.placed(diary.spec("leaving"))
    fleet.await_begun(diary, job)
    assert fleet.terminate("lab") == 0
    assert fleet.hub.job(job)["state"] == "pending"
    assert not fleet.is_running()
    diary.open("leaving")
    fleet.start_again("lab")
    assert [ended["state"] for ended in fleet.finished(job)] == ["succeeded"]
