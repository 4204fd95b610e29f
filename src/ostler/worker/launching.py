"""From an order to the process that carries it out."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ostler.domain.worker import Capabilities
from ostler.runtime.attempts import OUT, open_plain
from ostler.runtime.base import Launch
from ostler.runtime.identity import Identity, as_owner
from ostler.runtime.warm import PER_ATTEMPT
from ostler.worker.accounts import Accounts
from ostler.worker.environment import Folders, task_environment
from ostler.worker.orders import Facts, Order
from ostler.worker.outcomes import ERROR_FILE, RESULT
from ostler.worker.secrets import MEMORY
from ostler.worker.snapshots import DEFAULT_BYTES
from ostler.worker.tracking import tracked

HEARTBEAT_S = 10.0
PYTHON = "{python}"
PORT = "{port}"
CALL_FILE = "call.pkl"
FACTS_FILE = "facts.json"
MOST_FACTS_BYTES = 1024 * 1024
PLAIN, PLAIN_CALL = Facts(), Facts(call=True)
ERROR_VARIABLE = "OSTLER_ERROR"
FUNCTION = [PYTHON, "-m", "ostler.task.call"]
FRESH = "ostler.fresh"
"""The key in a spec's metadata by which a function asks for an interpreter of its own."""
_FOLDER = re.compile(r"\$OSTLER_(OUT|CHECKPOINT)(?![A-Za-z0-9_])")

_decode_facts = msgspec.json.Decoder(Facts).decode


class Place(msgspec.Struct, kw_only=True, frozen=True):
    """What does not change while a worker runs."""

    hub: str
    folder: Path
    environment: dict[str, str]
    """What every task inherits."""
    drain_s: float = 600.0
    heartbeat_s: float = HEARTBEAT_S
    snapshot_bytes: int = DEFAULT_BYTES
    """How much unpacked snapshots may take."""
    memory_limit: float = 0.0
    """A task is killed beyond so many times the memory that it asked for; 0: it is not."""
    accounts: Accounts | None = None
    """As whom tasks run; None: as the worker does."""
    tasks: Path | None = None
    """Where those find their things; None: in the worker's own folder."""
    secrets_in: Path = MEMORY
    """The file system in memory that tasks find their secrets on."""

    def reached(self, name: str) -> Path:
        """A folder for what tasks reach."""
        return (self.tasks or self.folder) / name

    def identity(self, user: str) -> Identity | None:
        """Whose the files of this user's tasks are, where they are not the worker's. NoAccount: nobody's here."""
        return None if self.accounts is None else self.accounts.of(user).identity


def make_launch(
    order: Order,
    place: Place,
    facts: Facts,
    *,
    capabilities: Capabilities,
    home: str,
    checkpoint: str,
    blob: Path | None,
    python: str,
    secrets: dict[str, str] | None = None,
) -> Launch:
    """`facts` are the order's, completed; `home` is the attempt's folder; `blob` is where the function's payload lies,
    if it did not come with it."""
    files = {}
    call = str(blob) if blob is not None else ""
    if order.payload is not None and blob is None:
        files[CALL_FILE] = order.payload.inline
        call = f"{home}/{CALL_FILE}"
    if facts not in (PLAIN, PLAIN_CALL):
        # Plain tasks and functions, which are nearly all, cost no file.
        files[FACTS_FILE] = msgspec.json.encode(facts)
    folders = Folders(f"{home}/{OUT}", checkpoint, call, f"{home}/{RESULT}" if facts.call else "")
    base, user = place.environment, None
    if place.accounts is not None:
        account = place.accounts.of(order.spec.user_id)
        base, user = place.accounts.environment(base, account), account.identity
    env = task_environment(base, order, capabilities, folders, place.hub, facts.port, secrets)
    argv = _filled(order.spec.command, python, facts.port, folders)
    if order.spec.prolog or order.spec.epilog:
        env[ERROR_VARIABLE] = f"{home}/{ERROR_FILE}"
        steps = {
            "prolog": _filled(order.spec.prolog, python, facts.port, folders),
            "command": argv,
            "epilog": _filled(order.spec.epilog, python, facts.port, folders),
        }
        argv = [python, "-m", "ostler.task.steps", msgspec.json.encode(steps).decode()]
    return Launch(
        attempt=order.attempt,
        task_id=order.task_id,
        argv=argv,
        base=base,
        env=env,
        files=files,
        deadline_s=order.remaining_s,
        stop=_filled(order.stop_command, python, facts.port, folders),
        lease_s=order.spec.lease_s(),
        anywhere=bool(order.after) and not files and not _names_its_folder(order),
        after=list(order.after),
        user=user,
        memory_mib=order.spec.memory_limit_mib(place.memory_limit),
        cores=order.spec.min_cpu_cores,
        asked_mib=order.spec.memory_limit_mib(1.0),
        devices=facts.devices,
        warm=_warm_keys.key(order, base, env, place, capabilities) if _may_be_warm(order, facts) else "",
    )


class Alike:
    """The launches of a line. They have one spec, so each is made of the one before it: all but a few variables are the
    same. Only what is plain is made so: nothing in its folder, no steps around it, no variables made of others.
    """

    def __init__(self) -> None:
        self._order: Order | None = None
        self._launch: Launch | None = None
        self._capabilities: Capabilities | None = None

    def made(self, order: Order, capabilities: Capabilities, launch: Launch) -> None:
        """The next may be like it."""
        is_plain = launch.anywhere and not (launch.stop or order.gang or order.facts.service or order.secrets)
        if is_plain and not tracked(order.spec.env, order.task_id, order.attempt):
            self._order, self._launch, self._capabilities = order, launch, capabilities
        else:
            self._order = self._launch = None

    def next(self, order: Order, capabilities: Capabilities, home: str, checkpoint: str) -> Launch | None:
        """None: it is like no other, as far as is known here."""
        last, launch = self._order, self._launch
        if last is None or launch is None or order.spec is not last.spec or not order.after:
            return None
        if order.facts is not last.facts or capabilities is not self._capabilities:
            return None
        own = {
            "OSTLER_JOB_ID": order.job_id,
            "OSTLER_TASK_ID": order.task_id,
            "OSTLER_ATTEMPT": order.attempt,
            "OSTLER_OUT": f"{home}/{OUT}",
            "OSTLER_CHECKPOINT": checkpoint,
        }
        if order.index is not None:
            own["OSTLER_INDEX"] = str(order.index)
        if order.facts.call:
            own["OSTLER_RESULT"] = f"{home}/{RESULT}"
        self._order = order
        self._launch = msgspec.structs.replace(
            launch,
            attempt=order.attempt,
            task_id=order.task_id,
            env=launch.env | own,
            after=list(order.after),
            like=launch.attempt,
            own=own,
        )
        return self._launch


def _names_its_folder(order: Order) -> bool:
    """Whether its commands have its folder's path in them, or another variable has."""
    spec = order.spec
    return bool(spec.prolog or spec.epilog) or any("$OSTLER_" in word for word in (*spec.command, *order.stop_command))


def _may_be_warm(order: Order, facts: Facts) -> bool:
    """A plain function. What holds devices, or begins in files or steps of its own, starts afresh."""
    spec = order.spec
    if spec.command != FUNCTION or not facts.call or spec.metadata.get(FRESH):
        return False
    held = facts.devices or facts.whole or facts.snapshot or facts.service
    return not (held or spec.prolog or spec.epilog or order.gang or spec.secrets)


class _WarmKeys:
    """The same for all who may share an interpreter: one user's functions, in one environment.

    That of the last is likely to be the next one's, so what an environment follows from is compared, not all of it.
    """

    def __init__(self) -> None:
        self._base: Mapping[str, str] = {}
        self._asked: tuple[object, ...] = ()
        self._key = ""

    def key(
        self,
        order: Order,
        base: Mapping[str, str],
        env: Mapping[str, str],
        place: Place,
        capabilities: Capabilities,
    ) -> str:
        spec = order.spec
        asked = (spec.user_id, spec.env, spec.min_cpu_cores, place.hub, capabilities.gpu_backend)
        if self._base is not place.environment or self._asked != asked:
            lasting = sorted(pair for pair in {**base, **env}.items() if pair[0] not in PER_ATTEMPT)
            self._key = hashlib.sha256(repr((spec.user_id, lasting)).encode()).hexdigest()
            self._base, self._asked = place.environment, asked
        return self._key


_warm_keys = _WarmKeys()


def _filled(argv: list[str], python: str, port: int, folders: Folders) -> list[str]:
    """An argv of the spec, with what only this worker knows put in."""
    if not argv:
        return []
    program, *arguments = argv
    if port:
        arguments = [argument.replace(PORT, str(port)) for argument in arguments]
    arguments = [_placed(argument, folders) if "$OSTLER_" in argument else argument for argument in arguments]
    return [python if program == PYTHON else program, *arguments]


def _placed(argument: str, folders: Folders) -> str:
    return _FOLDER.sub(lambda found: folders.out if found[1] == "OUT" else folders.checkpoint, argument)


def read_facts(folder: Path) -> Facts:
    """Those of an attempt that an earlier worker process launched."""
    try:
        with as_owner(folder), open_plain(folder / FACTS_FILE) as file:
            return _decode_facts(file.read(MOST_FACTS_BYTES))
    except (OSError, msgspec.DecodeError):
        return PLAIN_CALL  # whether it is a function shows in what it leaves
