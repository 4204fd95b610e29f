"""The adapter against commands that answer as Slurm's have been seen to: accounting, limits, refusals, silence."""

import os
from pathlib import Path

import pytest

from ostler.bridge.base import Ask, Refusal, Submission, Unanswered
from ostler.bridge.slurm import Slurm
from ostler.domain.errors import BadInput, NotFound

NODE = "NodeName=n1 CPUAlloc=0 CPUTot=8 RealMemory=16000 AllocMem=0 State=IDLE Partitions=gpu Gres=gpu:a100:2"
CONFIG = (
    "MaxArraySize = 4\nSelectTypeParameters = CR_CORE_MEMORY\nDefMemPerNode = UNLIMITED\nAccountingStorageType = {}"
)


class Commands:
    """What each command prints, where it fails, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.say("sinfo", "gpu|up|1-00:00:00")
        self.say("squeue", "")
        self.say("sacct", "")
        self.say("scancel", "")
        self.set_up("accounting_storage/none")

    def set_up(self, accounting: str) -> None:
        config = CONFIG.format(accounting)
        self.say("scontrol", "", f'case "$*" in *config) echo "{config}";; *node) echo "{NODE}";; *) echo n1;; esac')

    def say(self, name: str, text: str, more: str = "", *, error: str = "", code: int = 0) -> None:
        (self.folder / f"{name}.out").write_text(text)
        (self.folder / f"{name}.err").write_text(error)
        here = self.folder / name
        asked = f'echo "$@" >> {here}.asked; cat >> {here}.given'
        here.write_text(f"#!/bin/sh\n{asked}\n{more}\ncat {here}.out\ncat {here}.err >&2\nexit {code}\n")
        here.chmod(0o755)

    def asked(self, name: str) -> list[str]:
        file = self.folder / f"{name}.asked"
        return file.read_text().splitlines() if file.exists() else []

    def given(self, name: str) -> str:
        return (self.folder / f"{name}.given").read_text()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("OSTLER_TOKEN", "never shown")
    return Commands(folder)


async def opened(commands: Commands, folder: Path, **more: object) -> Slurm:
    slurm = Slurm("gpu", bridge="b", folder=folder, options=["--account=lab"], **more)  # type: ignore[arg-type]
    await slurm.open()
    return slurm


def job(attempt: str, folder: Path, **ask: object) -> Submission:
    script = folder / "attempts" / attempt / ".job" / "keep.sh"
    return Submission(attempt=attempt, task_id=f"t-{attempt}", script=script, ask=Ask(node="n1", **ask))  # type: ignore[arg-type]


async def test_one_job_is_submitted_with_all_that_it_asks_for(commands: Commands, tmp_path: Path) -> None:
    slurm = await opened(commands, tmp_path)
    commands.say("sbatch", "4711;cluster", "env >> $0.given")
    wanted = job("a", tmp_path, cores=2, memory_mib=512, gpus=1, gpu_type="a100", limit_s=150.0)
    assert await slurm.submit([wanted]) == {"a": "4711"}
    (asked,) = commands.asked("sbatch")
    for word in (
        "--parsable --job-name=ostler-t-a --comment=ostler:b:a --partition=gpu --nodelist=n1",
        "--cpus-per-task=2",
        "--mem=512M --gres=gpu:a100:1 --time=2 --account=lab",
        "--no-requeue",
    ):
        assert word in asked
    assert f"exec /bin/sh {wanted.script}" in commands.given("sbatch")
    assert "never shown" not in commands.given("sbatch")


async def test_jobs_that_ask_for_the_same_go_as_arrays_no_larger_than_the_site_allows(
    commands: Commands, tmp_path: Path
) -> None:
    slurm = await opened(commands, tmp_path)
    commands.say("sbatch", "9")
    found = await slurm.submit([*(job(name, tmp_path) for name in "abcd"), job("big", tmp_path, cores=4)])
    assert found == {"a": "9_0", "b": "9_1", "c": "9_2", "d": "9", "big": "9"}
    asked = commands.asked("sbatch")
    assert [line.count("--array=0-2") for line in asked] == [1, 0, 0]
    assert "--comment=ostler:b:@a" in asked[0]
    assert "--mem=2000M" in asked[0], "a core's share, where a job would else get all memory of its node"
    commands.say(
        "squeue", "9_0|RUNNING|None|ostler:b:@a\n9_2|PENDING|Resources|ostler:b:@a\n8|RUNNING|None|ostler:c:x\n"
    )
    found_again = await slurm.adopt()
    assert {name: {key: one.phase for key, one in jobs.items()} for name, jobs in found_again.items()} == {
        "a": {"9_0": "running"},
        "c": {"9_2": "waiting"},
    }


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            Refusal("Batch job submission failed: Invalid account or account/partition combination specified", True),
        ),
        (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits)",
            False,
        ),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", False),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", None),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", None),
    ],
)
async def test_a_refusal_lasts_or_not_and_silence_is_none(
    commands: Commands, tmp_path: Path, error: str, answer: Refusal | bool | None
) -> None:
    slurm = await opened(commands, tmp_path)
    commands.say("sbatch", "", error=error, code=1)
    found = (await slurm.submit([job("a", tmp_path)])).get("a")
    if isinstance(answer, bool):
        assert isinstance(found, Refusal)
        assert found.lasting is answer
    else:
        assert found == answer


async def test_what_the_controller_forgot_is_looked_up_where_there_is_accounting(
    commands: Commands, tmp_path: Path
) -> None:
    slurm = await opened(commands, tmp_path)
    commands.say("sacct", "5|TIMEOUT|0:0\n")
    assert await slurm.look(["5"]) == {}
    assert commands.asked("sacct") == []
    commands.set_up("accounting_storage/slurmdbd")
    slurm = await opened(commands, tmp_path)
    assert (await slurm.look(["5", "6"]))["5"].fate == "out of time"
    assert commands.asked("sacct") == ["-X -n -P -o JobID,State,ExitCode -j 5,6"]
    commands.say("squeue", "7|RUNNING|None|ostler:b:a\n")
    commands.say("sacct", "", error="sacct: error: slurm_persist_conn_open: failed: Connection refused", code=1)
    assert (await slurm.look(["6", "7"])).keys() == {"7"}, "of the others the controller has told"


async def test_the_exit_codes_of_failures_are_asked_for_once_and_together(commands: Commands, tmp_path: Path) -> None:
    slurm = await opened(commands, tmp_path)
    known = "5|FAILED|NonZeroExitCode|ostler:b:a\n6|COMPLETED|None|ostler:b:c\n7_1|FAILED|None|ostler:b:d"
    commands.say("squeue", "", f'case "$*" in *exit_code*) echo "5 2304"; echo "7_1 9";; *) echo "{known}";; esac')
    for _ in range(3):
        codes = {name: one.exit_code for name, one in (await slurm.look(["5", "6", "7_1"])).items()}
        assert codes == {"5": 9, "6": 0, "7_1": 137}
    assert sum("exit_code" in asked for asked in commands.asked("squeue")) == 1


async def test_a_controller_that_is_away_is_no_answer(commands: Commands, tmp_path: Path) -> None:
    slurm = await opened(commands, tmp_path)
    commands.say("squeue", "", error="slurm_load_jobs error: Unable to contact slurm controller", code=1)
    with pytest.raises(Unanswered, match="Unable to contact"):
        await slurm.look(["5"])
    commands.say("scancel", "", error="scancel: error: Kill job error on job id 5: Invalid job id specified", code=1)
    await slurm.stop(["5", "6_1"], "TERM")
    assert commands.asked("scancel") == ["--quiet --signal=TERM --full 5 6_1"]


async def test_wrong_names_are_told_in_words(commands: Commands, tmp_path: Path) -> None:
    (node,) = await (await opened(commands, tmp_path, nodes="n1")).nodes()
    assert (node.limit_s, node.gpus) == (86_400.0, 2)
    commands.say("scontrol", "", f'case "$*" in *hostnames*) echo n7;; *) echo "{NODE}";; esac')
    with pytest.raises(BadInput, match="n7 is not in partition gpu"):
        await opened(commands, tmp_path, nodes="n7")
    commands.say("sinfo", "")
    with pytest.raises(NotFound, match="no partition gpu"):
        await opened(commands, tmp_path)
