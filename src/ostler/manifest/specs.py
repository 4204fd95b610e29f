"""From an entry to the job's spec: its id, its name, its command."""

import hashlib
from typing import Any

import msgspec
import rfc8785

from ostler.domain.errors import BadInput
from ostler.domain.job import MAX_SPEC_BYTES, JobSpec, Training, decode_spec
from ostler.manifest.entries import Entry
from ostler.manifest.keys import JOB_KEYS, shown
from ostler.manifest.locate import Path, spell
from ostler.manifest.problems import Enough, Problems, suggestion
from ostler.manifest.template import ALL_HYPER, Template, TooLong, as_options, fill, one_spelling, parse

MAX_TOTAL_BYTES = 32 * 1024 * 1024
"""Of all specs of one manifest: a small grid over a long command must not fill the hub."""
IDENTITY = ("model", "mode", "hyper", "split_recipe", "train_hosts", "seed")
NO_GRACE = JobSpec().prefer_cuda_grace_seconds
KEY_OF_FIELD = {"min_vram_gb": "min_vram_gib", "min_memory_gb": "min_ram_gib", "min_cpu_cores": "min_cores"}
"""Fields of a spec whose names differ from the manifest's."""


def job_id(training: Training, name: str = "") -> str:
    """The id of a manifest's job: a hash of what is trained, or of the job's name where no model is named."""
    return former_job_id(training) if training.model else _hash({"name": name})


def former_job_id(training: Training) -> str:
    """The hash of what is trained, by which older ledgers also know jobs without a model."""
    about: dict[str, Any] = {key: getattr(training, key) for key in IDENTITY}
    about["train_hosts"] = sorted(training.train_hosts)
    return _hash(about)


def _hash(about: dict[str, Any]) -> str:
    return hashlib.sha256(rfc8785.dumps(about)).hexdigest()


class Unmade(Exception):
    """No spec can be made of this entry; it has been said why."""


class Specs:
    """The specs of one manifest as they are made, and what was learnt on the way."""

    def __init__(self, problems: Problems, line_of: dict[Path, int]) -> None:
        self.made: dict[str, JobSpec] = {}
        self.lines: dict[str, int] = {}
        self._problems = problems
        self._line_of = line_of
        self._first: dict[str, Entry] = {}
        """By id, the entry that has it."""
        self._parsed: dict[str, Template] = {}
        self._unknown: set[tuple[Path, str]] = set()
        self._bytes = 0

    def add(self, entry: Entry) -> None:
        try:
            self._keep(self._spec(entry), entry)
        except Unmade:
            return
        except BadInput as error:
            for field, what in error.errors or [("", str(error))]:
                key = field.removeprefix("training.")
                self._problems.add(entry.place(KEY_OF_FIELD.get(key, key)), what)

    def _keep(self, spec: JobSpec, entry: Entry) -> None:
        data = msgspec.json.encode(spec)
        self._bytes += len(data)
        if self._bytes > MAX_TOTAL_BYTES:
            size = f"{MAX_TOTAL_BYTES >> 20} MiB"
            what = f"with this the manifest has over {size}, sweeps expanded; put long texts into files"
            self._problems.add(entry.path, what)
            raise Enough
        made = decode_spec(data)
        identity = IDENTITY if entry.get("model") else (*IDENTITY, "name")
        if entry.spoiled.intersection(identity) or not (entry.get("model") or spec.name):
            return
        first = self._first.setdefault(spec.id, entry)
        if first is entry:
            self.made[spec.id] = made
            self.lines[spec.id] = self._line_of.get(entry.path, 1)
        else:
            self._complain_of_double(entry, first)

    def _complain_of_double(self, entry: Entry, first: Entry) -> None:
        """Adds the error that two entries, or two points of one sweep, are one job."""
        has_model = bool(entry.get("model"))
        if entry.path == first.path:
            place = entry.place("grid" if "grid" in entry.own else "list")
            advice = "(1 and 1.0 are one number); leave one out"
            if not has_model:
                advice = "by its name, since it has no model; leave one out, or put keys in braces into the name"
            self._problems.add(place, f"two of its points are the same job {advice}")
            return
        same = f"is the same job as {spell(first.path)} (line {self._line_of.get(first.path, 1)})"
        advice = f"one of {', '.join(IDENTITY)} must differ"
        if not has_model:
            advice = "without a model the name identifies a job: change the name, or add a model"
        self._problems.add(entry.path, f"{same}; {advice}")

    def _spec(self, entry: Entry) -> JobSpec:
        self._complain_of_gaps(entry)
        get = entry.get
        training = Training(
            model=get("model"),
            mode=get("mode"),
            hyper=one_spelling(get("hyper")),
            split_recipe=get("split_recipe"),
            train_hosts=get("train_hosts"),
            seed=get("seed"),
            n_resamples=get("n_resamples"),
            sweep=entry.sweep,
            metric=get("metric"),
            goal=get("goal") if get("metric") else "",
        )
        name = self._name(entry)
        needs_cuda = get("require_cuda")
        prefers_cuda = get("prefer_cuda") and not needs_cuda
        return JobSpec(
            id=job_id(training, name),
            name=name,
            user_id="manifest",
            job_tier="training",
            on_lost_contact="stop",
            gpu_backend="nvidia" if needs_cuda else "",
            gpu_count=1 if needs_cuda else 0,
            min_vram_gb=float(get("min_vram_gib")),
            min_memory_gb=float(get("min_ram_gib")),
            min_cpu_cores=float(get("min_cores")),
            allowed_hosts=get("allowed_hosts"),
            denied_hosts=get("denied_hosts"),
            prefer_cuda=prefers_cuda,
            prefer_cuda_grace_seconds=float(get("prefer_cuda_grace_s")) if prefers_cuda else NO_GRACE,
            labels=get("labels"),
            priority=get("priority"),
            command=self._command(entry, name),
            env=get("env"),
            max_runtime_hours=float(get("max_runtime_hours")),
            max_attempts=get("max_attempts"),
            max_retries=get("max_retries"),
            preemptible=get("preemptible"),
            training=training,
        )

    def _complain_of_gaps(self, entry: Entry) -> None:
        has_name = entry.get("name") or entry.get("model") or entry.spoiled & {"name", "model"}
        if not has_name and entry.path[0] == "jobs":
            self._problems.add(entry.path, "needs a name or a model")
        if "goal" in entry.own and not entry.spoiled & {"goal", "metric"} and not entry.get("metric"):
            self._problems.add(entry.place("goal"), "says nothing without a metric; name one")
        if "command" not in entry.values:
            if "command" not in entry.spoiled:
                self._problems.add(entry.path, "needs a command, here or in [defaults]")
            raise Unmade

    def _name(self, entry: Entry) -> str:
        if not entry.get("name"):
            return "-".join(part for part in (entry.get("model"), entry.get("mode")) if part)
        names = {key: entry.get(key) for key in JOB_KEYS if key not in ("name", "command")}
        return self._filled(entry, entry.get("name"), names | entry.get("hyper"), entry.place("name"))

    def _command(self, entry: Entry, name: str) -> list[str]:
        names = {key: entry.get(key) for key in JOB_KEYS if key != "command"}
        names |= {"name": name} | entry.get("hyper") | {"out": "$OSTLER_OUT"}
        place = entry.place("command")
        options = as_options(entry.get("hyper"))
        command: list[str] = []
        room = MAX_SPEC_BYTES
        for index, text in enumerate(entry.get("command")):
            takes_all = text == "{" + ALL_HYPER + "}"
            arguments = options if takes_all else [self._filled(entry, text, names, (*place, index), room)]
            command += arguments
            room -= sum(map(len, arguments)) + len(arguments)
            if room < 0:
                raise self._too_long(place)
        return command

    def _filled(self, entry: Entry, text: str, names: dict[str, Any], place: Path, room: int = MAX_SPEC_BYTES) -> str:
        def value_of(name: str) -> Any:
            if name not in names:
                self._complain_of_name(entry, name, list(names), place)
            return names.get(name, name)

        if text not in self._parsed:
            self._parsed[text] = parse(text)
        try:
            return fill(self._parsed[text], value_of, room)
        except TooLong:
            raise self._too_long(place) from None

    def _too_long(self, place: Path) -> Enough:
        most = f"{MAX_SPEC_BYTES >> 10} KiB"
        self._problems.add(place, f"is over {most} with its braces filled; put long texts into files")
        return Enough()

    def _complain_of_name(self, entry: Entry, name: str, valid: list[str], place: Path) -> None:
        if name in entry.spoiled or "hyper" in entry.spoiled or (place, name) in self._unknown:
            return
        self._unknown.add((place, name))
        if name == ALL_HYPER:
            what = "'{hyper...}' must be an argument of its own, in a command"
        else:
            whose = f" for {spell(entry.path)}" if place[0] == "defaults" else ""
            what = f"unknown name {shown(name)} in braces{whose}; {suggestion(name, valid, 'name')}"
        self._problems.add(place, what)
