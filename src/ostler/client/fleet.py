"""A fleet from Python: functions and commands in, values out."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Unpack

from ostler import config
from ostler.client import functions, notebook, snapshots
from ostler.client.carrying import carried
from ostler.client.errors import BadInput
from ostler.client.executor import FleetExecutor
from ostler.client.http import Document, Hub
from ostler.client.job import Job, wait_for_end
from ostler.client.mapping import Calls, Results
from ostler.client.resources import Labels, Options, Resources, spec_fields
from ostler.client.transport import Patience
from ostler.client.watch import Watch
from ostler.domain.job import MAX_ARRAY


def connect(
    hub: str | None = None,
    token: str | None = None,
    state_dir: str | Path | None = None,
    *,
    patience: Patience | None = None,
    ca: str | None = None,
) -> "Fleet":
    """The fleet of a hub. What is not given comes from OSTLER_HUB and OSTLER_TOKEN, else from this machine's hub.

    `ca`: by what a hub with TLS is known: its authority's certificate (a file), or `sha256:` and the fingerprint of
    that; else OSTLER_CA, else what the system trusts.

    Nothing is sent yet: a hub that is not there shows with the first call.
    """
    state = config.state_dir(state_dir)
    url, trust = config.hub_url(hub, state), config.trust(ca, state)
    return Fleet(Hub(url, config.read_token(token, state, "admin"), patience=patience, trust=trust))


class Fleet:
    """Safe to use from several threads; close it when done, or use it in a `with` block."""

    def __init__(self, hub: Hub, on_close: Callable[[], None] | None = None) -> None:
        self.hub = hub
        self._on_close = on_close
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._closed = False

    @property
    def url(self) -> str:
        return self.hub.url

    def __repr__(self) -> str:
        return f"<Fleet {self.hub.url}>"

    def _repr_html_(self) -> str:
        return notebook.shown(lambda: notebook.fleet_html(self.url, self.status(), self.workers()), repr(self))

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the hub. Jobs go on without this object; an embedded fleet ends with it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._watch is not None:
            self._watch.close()
        self.hub.close()
        if self._on_close is not None:
            self._on_close()

    # Work

    def submit(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        resources: Resources | None = None,
        labels: Labels | None = None,
        prefer_labels: Labels | None = None,
        scheduling_timeout_seconds: float | None = None,
        max_runtime_hours: float | None = None,
        max_attempts: int | None = None,
        max_retries: int | None = None,
        priority: int | None = None,
        tier: str | None = None,
        env: Mapping[str, str] | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        secrets: Sequence[str] | None = None,
        id: str | None = None,
        **kwargs: Any,
    ) -> Job:
        """Run `fn(*args, **kwargs)` on a worker that has the resources.

        A parameter of the function that is called like an option here is given by `functools.partial`.
        """
        options: Options = {
            "id": id,
            "name": name,
            "resources": resources,
            "labels": labels,
            "prefer_labels": prefer_labels,
            "scheduling_timeout_seconds": scheduling_timeout_seconds,
            "max_runtime_hours": max_runtime_hours,
            "max_attempts": max_attempts,
            "max_retries": max_retries,
            "priority": priority,
            "tier": tier,
            "env": env,
            "user_id": user_id,
            "metadata": metadata,
            "secrets": secrets,
        }
        given = [option for option, value in options.items() if value is not None]
        functions.check_call(fn, args, kwargs, given)
        return self.submit_call(fn, args, kwargs, options)

    def submit_command(
        self,
        command: Sequence[str],
        *,
        array: int | None = None,
        snapshot: str | Path | None = None,
        **options: Unpack[Options],
    ) -> Job:
        """Run a program, given as a list of strings; with `array`, as so many tasks, each with its OSTLER_INDEX.

        It starts in a copy of the folder `snapshot`, where that is given: what git would take of it.
        """
        if isinstance(command, str) or not all(isinstance(part, str) for part in command):
            raise BadInput(
                f"command: expected a list of strings, got {command!r}; for a shell's line write ['sh', '-c', LINE]"
            )
        spec = {**spec_fields(options, "submit_command"), "command": list(command)}
        if array is not None:
            spec["array"] = array
        if snapshot is not None:
            spec["snapshot_id"] = snapshots.send_telling(self.hub, snapshot)
        return self._send(spec)

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        ordered: bool = True,
        timeout: float | None = None,
        return_exceptions: bool = False,
        **options: Unpack[Options],
    ) -> Results:
        """One task for each element (or each row of several iterables), all of them one array job, submitted now.

        The values come lazily and in order, or as they end with `ordered=False`. A call's exception is raised in its
        place, or yielded with `return_exceptions`; see Results for what leaving early does.
        """
        submitted = self.submit_map(fn, iterables, options, ordered)
        job, calls = submitted or (None, None)
        return Results(job, calls, timeout, return_exceptions)

    def executor(self, **options: Unpack[Options]) -> FleetExecutor:
        """A `concurrent.futures.Executor` whose calls run on the fleet, each with these options."""
        spec_fields(options, "executor")  # what is wrong is told here rather than with the first call
        if options.get("id") is not None:
            raise TypeError("executor() makes many jobs, which cannot share an id")
        return FleetExecutor(self, options)

    # What there is

    def job(self, job_id: str) -> Job:
        """A job that was submitted before, by its id, the beginning of that, or its name (the newest one).

        Its `result` runs what unpickling runs: ask for those of people you trust.
        """
        document = self.hub.job(job_id)
        return Job(self.hub, document["id"], document.get("name") or "")

    def wait(self, job_id: str | Job, timeout: float | None = None) -> Document:
        """The job's document when it has ended, however it ended; WaitTimeout if that takes longer."""
        return wait_for_end(self.hub, job_id.id if isinstance(job_id, Job) else job_id, timeout)

    def cancel(self, job_id: str | Job) -> Document:
        return self.hub.cancel(job_id.id if isinstance(job_id, Job) else job_id)

    def why(self, job_id: str | Job) -> Document:
        """Why it is where it is: what blocks it, who holds that, the smallest change that would start it, and when it
        is expected to; of a running one why it runs there, of an ended one what ended it."""
        return self.hub.why(job_id.id if isinstance(job_id, Job) else job_id)

    def estimate(self, job_id: str | Job) -> Document:
        """When it begins and ends, with the band that holds in four of five cases."""
        return self.hub.estimate(job_id.id if isinstance(job_id, Job) else job_id)

    def whatif(
        self,
        *,
        spec: Mapping[str, Any] | None = None,
        job: str | Job | None = None,
        changes: Mapping[str, Any] | None = None,
        priority: int | None = None,
        add_workers: Sequence[Mapping[str, Any]] = (),
        remove_workers: Sequence[str] = (),
        drain: Sequence[str] = (),
        resume: Sequence[str] = (),
        policy: Mapping[str, Any] | None = None,
        within_s: float | None = None,
    ) -> Document:
        """What would start when, if this were so, beside what will. Nothing real is touched.

        `spec` is a job that is not submitted; `job` one that waits, with `changes` laid over its spec. A worker is
        added as {"like": "box", "count": 2} or {"capabilities": {...}, "slots": 8}.
        """
        question = {
            "spec": spec,
            "job_id": job.id if isinstance(job, Job) else job,
            "changes": changes,
            "priority": priority,
            "add_workers": list(add_workers),
            "remove_workers": list(remove_workers),
            "drain": list(drain),
            "resume": list(resume),
            "policy": policy,
            "within_s": within_s,
        }
        return self.hub.whatif({name: value for name, value in question.items() if value not in (None, [])})

    def jobs(
        self,
        *,
        state: str | Iterable[str] | None = None,
        name: str | None = None,
        user: str | None = None,
        limit: int | None = 1000,
    ) -> list[Document]:
        """Jobs, newest first."""
        return list(self.hub.all_jobs(state=state, name=name, user=user, limit=limit))

    def workers(self) -> list[Document]:
        return self.hub.workers()

    def status(self) -> Document:
        """The whole fleet in a few numbers."""
        return self.hub.status()

    # For the parts of this package

    def watch(self) -> Watch:
        with self._lock:
            if self._watch is None:
                self._watch = Watch(self.hub)
            return self._watch

    def submit_map(
        self, fn: Callable[..., Any], iterables: Sequence[Iterable[Any]], options: Options, ordered: bool
    ) -> tuple[Job, Calls] | None:
        """The array job of a map, and the reader of its outcomes; None where there is nothing to call."""
        fields = spec_fields(options, "map")
        if not callable(fn):
            raise TypeError(f"map() needs a function to call, not {fn!r}")
        if not iterables:
            raise TypeError("map() needs at least one iterable")
        rows = list(zip(*iterables, strict=False))
        if not rows:
            return None
        if len(rows) > MAX_ARRAY:
            raise BadInput(f"map: {len(rows)} calls; at most {MAX_ARRAY} are taken at a time")
        fields = {"name": functions.name_of(fn), **fields, "array": len(rows)}
        spec = functions.spec_of(functions.map_payload(fn, rows), fields, self.hub.put_blob)
        job = self._send(spec)
        return job, Calls(self.hub, job.id, spec, ordered=ordered)

    def submit_call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
    ) -> Job:
        return self._send(self._call_spec(fn, args, kwargs, options))

    def submit_watched(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
    ) -> tuple[Job, "Future[Document]"]:
        """A function's job, and the future of its end. The id is made here, so that no end comes before its watcher."""
        job_id = f"{time.time_ns() // 1_000_000:x}-{secrets.token_hex(6)}"
        spec = self._call_spec(fn, args, kwargs, {**options, "id": job_id})
        end = self.watch().future(job_id)
        try:
            job = self._send(spec, traced=True)
        except BaseException:
            self.watch().forget(job_id, end)
            raise
        self.watch().submitted(job_id)
        return job, end

    def _call_spec(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
    ) -> dict[str, Any]:
        fields = {"name": functions.name_of(fn), **spec_fields(options, "submit")}
        return functions.spec_of(functions.call_payload(fn, args, kwargs), fields, self.hub.put_blob)

    def _send(self, spec: dict[str, Any], *, traced: bool | None = None) -> Job:
        answer = self.hub.submit(carried(spec, traced="id" not in spec if traced is None else traced))
        return Job(self.hub, answer["id"], spec.get("name", ""), answer.get("notes"))
