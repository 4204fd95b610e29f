"""Slurm, by its commands: sbatch, squeue, scancel, scontrol, sinfo, and sacct where there is accounting."""

import asyncio
import contextlib
import math
import os
import re
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ostler.bridge import slurm_text as text
from ostler.bridge.base import Ask, Node, Refusal, Sight, Signal, Submission, Unanswered
from ostler.bridge.script import many_script, one_script
from ostler.domain.errors import BadInput, NotFound

ANSWER_S = 60.0
MOST_IN_ONE = 500
MOST_STOPPED = 200
BATCHES = "batches"
KEPT_S = 24 * 3600.0
"""Lists of what was submitted together; later only those that Slurm still knows are kept."""
PREFIX = "ostler"
KEPT_NAMES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "SLURM_CONF", "LD_LIBRARY_PATH")
"""All that jobs and commands see of the bridge's environment: a job's environment may be read by others."""
_UNHEARD = re.compile(
    "unable to contact|timed out|zero bytes|connection refused|not responding|transport endpoint|communications"
    "|unexpected message|socket|munge|credential",
    re.IGNORECASE,
)
_NOT_NOW = re.compile("temporarily|submit.*limit|limit.*submit|violates accounting|max.*jobs|later", re.IGNORECASE)


class Slurm:
    """One partition. `bridge` is a name that no other bridge to this cluster has; `folder` is shared with the nodes."""

    name = "Slurm"
    hurry_s = math.inf

    def __init__(
        self, partition: str, *, bridge: str, folder: Path, nodes: str = "", options: Sequence[str] = ()
    ) -> None:
        self._partition = partition
        self._mark = f"{PREFIX}:{bridge}:"
        self._batches = folder / BATCHES
        self._nodes = nodes
        self._names: set[str] = set()
        self._options = list(options)
        self._environment = {name: os.environ[name] for name in KEPT_NAMES if name in os.environ}
        self._user = str(os.geteuid())
        self._settings: dict[str, str] = {}
        self._shares: dict[str, float] = {}
        self._exit_codes: dict[str, int | None] = {}

    async def open(self) -> None:
        """See that all is there. BadInput or NotFound where an operator has to see to something first."""
        try:
            self._settings = text.settings(await self._ask("scontrol", "show", "config"))
        except FileNotFoundError as error:
            raise NotFound(f"{error.filename}: no such command; a bridge runs where Slurm's commands are") from None
        if self._nodes:
            self._names = set((await self._ask("scontrol", "show", "hostnames", self._nodes)).split())
        found = await self.nodes()
        missing = self._names - {node.name for node in found}
        if missing:
            raise BadInput(f"--nodes: {min(missing)} is not in partition {self._partition}; `sinfo -N` lists the nodes")

    async def nodes(self) -> list[Node]:
        told = text.partitions(await self._ask("sinfo", "-h", "-p", self._partition, "-o", text.PARTITION_FORMAT))
        if not told:
            raise NotFound(f"Slurm has no partition {self._partition}; `sinfo` lists those that it has")
        found = text.nodes(await self._ask("scontrol", "-o", "-d", "show", "node"), told[0])
        self._shares = text.shares(found)
        return [node for node in found if not self._names or node.name in self._names]

    async def submit(self, jobs: Sequence[Submission]) -> dict[str, str | Refusal]:
        alike: dict[Ask, list[Submission]] = {}
        for job in jobs:
            alike.setdefault(job.ask, []).append(job)
        most = min(MOST_IN_ONE, int(self._settings.get("MaxArraySize", MOST_IN_ONE)) - 1)
        answers: dict[str, str | Refusal] = {}
        for same in alike.values():
            for start in range(0, len(same), max(1, most)):
                answers |= await self._submit(same[start : start + max(1, most)])
        return answers

    async def _submit(self, jobs: list[Submission]) -> dict[str, str | Refusal]:
        """One by itself, several as one array."""
        first = jobs[0]
        if len(jobs) == 1:
            script, named, more = one_script(str(first.script)), first.attempt, []
        else:
            listed = self._batches / first.attempt
            await asyncio.to_thread(self._write_list, listed, jobs)
            script = many_script(str(listed), "SLURM_ARRAY_TASK_ID")
            named, more = f"@{first.attempt}", [f"--array=0-{len(jobs) - 1}"]
        options = self._asking(first.ask)
        words = [f"--job-name={PREFIX}-{first.task_id}", f"--comment={self._mark}{named}", *more, *options]
        try:
            told = await self._ask("sbatch", "--parsable", *words, *self._options, given=script)
        except Failed as error:
            refusal = Refusal(error.text, lasting=_NOT_NOW.search(error.text) is None)
            return {job.attempt: refusal for job in jobs}
        except Unanswered:
            return {}
        job_id = told.strip().splitlines()[-1].partition(";")[0]
        if len(jobs) == 1:
            return {first.attempt: job_id}
        return {job.attempt: f"{job_id}_{index}" for index, job in enumerate(jobs)}

    def _asking(self, ask: Ask) -> list[str]:
        words = [
            f"--partition={self._partition}",
            f"--nodelist={ask.node}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={ask.cores}",
            "--no-requeue",
            "--export=ALL",
            "--chdir=/",
            "--output=/dev/null",
            "--error=/dev/null",
        ]
        memory_mib = ask.memory_mib
        if not memory_mib and not text.default_memory(self._settings):
            # Without a word of it, the whole node's memory would be taken.
            memory_mib = int(self._shares.get(ask.node, 0.0) * ask.cores)
        if memory_mib:
            words.append(f"--mem={memory_mib}M")
        if ask.gpus:
            words.append(f"--gres=gpu:{ask.gpu_type + ':' if ask.gpu_type else ''}{ask.gpus}")
        if ask.limit_s:
            words.append(f"--time={max(1, int(ask.limit_s // 60))}")
        return words

    async def look(self, jobs: Collection[str]) -> dict[str, Sight]:
        known = {job.id: job for job in await self._known()}
        found = {name: known[name].sight for name in jobs if name in known}
        failed = [name for name in found if known[name].state == "FAILED"]
        if not self._exit_codes.keys() >= set(failed):
            self._exit_codes = dict.fromkeys(failed) | await self._failures()
        found |= {name: text.sight("FAILED", found[name].reason, self._exit_codes[name]) for name in failed}
        missing = [name for name in jobs if name not in known]
        if missing and self._has_accounting:
            with contextlib.suppress(Unanswered):  # the controller has answered, and what they left tells the most
                told = await self._ask("sacct", "-X", "-n", "-P", "-o", text.ACCOUNT_FORMAT, "-j", ",".join(missing))
                found |= {name: one for name, one in text.accounts(told).items() if name in missing}
        return found

    async def _failures(self) -> dict[str, int | None]:
        """Their exit codes, for when a script could not leave its own."""
        told = await self._ask("squeue", "-h", "-r", "-t", "FAILED", "-u", self._user, "-O", text.FAILURES_FORMAT)
        return text.failures(told)

    @property
    def _has_accounting(self) -> bool:
        kind = self._settings.get("AccountingStorageType", "")
        return bool(kind) and not kind.endswith("/none") and kind != "(null)"

    async def _known(self) -> list[text.Job]:
        """Ours, by their comment, in one call: whatever Slurm has not forgotten."""
        told = await self._ask("squeue", "-h", "-r", "-t", "all", "-u", self._user, "-o", text.JOBS_FORMAT)
        return [job for job in text.jobs(told) if job.comment.startswith(self._mark)]

    async def stop(self, jobs: Collection[str], signal: Signal) -> None:
        how = [f"--signal={signal}", "--full"] if signal else []
        named = list(jobs)
        for start in range(0, len(named), MOST_STOPPED):
            with contextlib.suppress(Failed):  # some of them are over: the next look tells which
                await self._ask("scancel", "--quiet", *how, *named[start : start + MOST_STOPPED])

    async def adopt(self) -> dict[str, dict[str, Sight]]:
        found: dict[str, dict[str, Sight]] = {}
        batches: dict[str, list[str]] = {}
        for job in await self._known():
            named = job.comment.removeprefix(self._mark)
            if named.startswith("@"):
                if named not in batches:
                    batches[named] = await asyncio.to_thread(self._listed, named[1:])
                index = job.id.rpartition("_")[2]
                listed = batches[named]
                named = listed[int(index)] if index.isdigit() and int(index) < len(listed) else ""
            if named:
                found.setdefault(named, {})[job.id] = job.sight
        await asyncio.to_thread(self._clear, {name[1:] for name in batches})
        return found

    def _write_list(self, path: Path, jobs: Iterable[Submission]) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text("".join(f"{job.script}\n" for job in jobs))

    def _listed(self, name: str) -> list[str]:
        """The attempts that were submitted together."""
        try:
            lines = (self._batches / Path(name).name).read_text().splitlines()
        except OSError:
            return []
        return [Path(line).parent.parent.name for line in lines]

    def _clear(self, known: Iterable[str]) -> None:
        kept, now = set(known), time.time()
        for path in self._batches.iterdir() if self._batches.is_dir() else ():
            if path.name not in kept and now - path.stat().st_mtime > KEPT_S:
                path.unlink(missing_ok=True)

    async def _ask(self, *command: str, given: str = "") -> str:
        return await ask(command, given, self._environment)


class Failed(Unanswered):
    """A command of Slurm's said no. Where that is no answer to what was asked, nothing is known."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


async def ask(command: Sequence[str], given: str, environment: Mapping[str, str]) -> str:
    """What the command prints. Unanswered if nobody was there, Failed if the answer was no."""
    with tempfile.TemporaryFile() as file:  # and no pipe: a command that says no may be gone before it is written to
        file.write(given.encode())
        file.seek(0)
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdin=file, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    try:
        out, err = await asyncio.wait_for(process.communicate(), ANSWER_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise Unanswered(f"{command[0]} did not end within {ANSWER_S:.0f} s") from None
    if process.returncode:
        said = " ".join(line.removeprefix(f"{command[0]}: ").removeprefix("error: ") for line in _lines(err))
        if _UNHEARD.search(said):
            raise Unanswered(said)
        raise Failed(said or f"{command[0]} ended with {process.returncode}")
    return out.decode(errors="replace")


def _lines(said: bytes) -> list[str]:
    return [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
