"""As whom tasks run: what an operator writes under [worker] in ostler.toml, looked up on this machine.

    [worker]
    run_as = "ostler-tasks"         # every task; USER, USER:GROUP, or their numbers
    tasks_dir = "/var/lib/tasks"    # where those users reach their tasks' folders

    [worker.run_as]                 # or each of Ostler's users as one of the machine's
    ann = "ann"
    "*" = "nobody"                  # whoever is not named; without it their tasks are not run here

Only a worker that is root can do this. Without it tasks run as the worker does, and between the two there is no wall.
"""

import grp
import logging
import os
import pwd
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ostler.domain.errors import BadInput
from ostler.runtime.identity import Identity, acting_as, can_change
from ostler.runtime.supervisor import ATTEMPTS

TABLE = "worker"
KEYS = ("run_as", "tasks_dir", "memory_limit")
EVERYBODY = "*"
HOMES = "homes"
MEMORY_LIMIT = 1.25
"""A task gets so much of the memory that it asked for, and is killed beyond it, where the machine's cgroups allow."""
_OF_SOMEBODY_ELSE = ("XDG_", "SSH_", "SUDO_", "DBUS_", "GPG_")

_log = logging.getLogger("ostler.worker")


class NoAccount(OSError):
    """The machine's operator has named nobody as whom this user's tasks run: another worker may have."""


class Account(msgspec.Struct, frozen=True):
    name: str
    uid: int
    gid: int
    home: str = ""
    """Empty: it has none of its own."""

    @property
    def identity(self) -> Identity:
        return Identity(self.uid, self.gid)


class WorkerSettings(msgspec.Struct, frozen=True):
    accounts: dict[str, Account] = {}
    """By Ostler's users; empty: tasks run as the worker does."""
    tasks_dir: str = ""
    memory_limit: float = MEMORY_LIMIT


class Accounts:
    """`tasks` is the folder below which tasks find their own: others can pass through it, and list nothing."""

    def __init__(self, chosen: Mapping[str, Account], tasks: Path) -> None:
        self._chosen = chosen
        self._tasks = tasks

    def of(self, user: str) -> Account:
        found = self._chosen.get(user) or self._chosen.get(EVERYBODY)
        if found is None:
            raise NoAccount(f"this worker runs no tasks of {user!r}: its [worker.run_as] names nobody for them")
        return found

    def environment(self, base: Mapping[str, str], account: Account) -> dict[str, str]:
        """What is the worker's own user's is not theirs."""
        env = {name: value for name, value in base.items() if not name.startswith(_OF_SOMEBODY_ELSE)}
        env.pop("MAIL", None)
        return {**env, "HOME": self._home(account), "USER": account.name, "LOGNAME": account.name}

    def _home(self, account: Account) -> str:
        """Its own, if it can write there; else one that is kept for it here."""
        if account.home not in ("", "/") and _owned_by(account.home, account.uid):
            return account.home
        home = self._tasks / HOMES / str(account.uid)
        if not home.exists():
            home.mkdir(mode=0o700)
            os.chown(home, account.uid, account.gid)
        return str(home)


def _owned_by(path: str, uid: int) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid


def load(path: Path | None) -> WorkerSettings:
    """The worker's part of this file; that of a worker without one where there is none."""
    if path is None:
        return WorkerSettings()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get(TABLE, {})
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", [("config", "cannot be read")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: is not TOML: {error}", [("config", "not TOML")]) from None
    return read(table)


def read(table: Any) -> WorkerSettings:
    if not isinstance(table, dict):
        raise _wrong(TABLE, f"must be a table: [{TABLE}]")
    for key in table:
        if key not in KEYS:
            raise _wrong(f"{TABLE}.{key}", f"unknown key {key!r}; known are {', '.join(KEYS)}")
    run_as, tasks_dir = table.get("run_as", {}), table.get("tasks_dir", "")
    limit = table.get("memory_limit", MEMORY_LIMIT)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not (limit == 0 or 1 <= limit <= 100):
        raise _wrong(f"{TABLE}.memory_limit", "must be a number from 1 to 100, or 0 for no limit")
    if not isinstance(tasks_dir, str) or (tasks_dir and not tasks_dir.startswith("/")):
        raise _wrong(f"{TABLE}.tasks_dir", "must be a folder in quotes that begins with a slash")
    named = {EVERYBODY: run_as} if isinstance(run_as, str) else run_as
    if not isinstance(named, dict):
        raise _wrong(f"{TABLE}.run_as", "must be a user in quotes, or a table of them")
    accounts = {user: account(text, f"{TABLE}.run_as") for user, text in named.items()}
    if accounts and not can_change():
        raise _wrong(
            f"{TABLE}.run_as",
            f"needs a worker that is root, on Linux, and this one is user {os.geteuid()}; start it as root, or take "
            "run_as out",
        )
    return WorkerSettings(accounts, tasks_dir, float(limit))


def account(text: Any, where: str) -> Account:
    """`USER`, `USER:GROUP`, or their numbers, which need not be known to this machine."""
    if not isinstance(text, str) or not text:
        raise _wrong(where, f"{text!r} is no user; write it like 'nobody', or '1001:1001'")
    user, colon, group = text.partition(":")
    try:
        known = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        if not (user.isdecimal() and colon):
            raise _wrong(where, f"there is no user {user!r} on this machine") from None
        known = None
    try:
        if not colon and known is not None:
            gid = known.pw_gid
        else:
            gid = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise _wrong(where, f"there is no group {group!r} on this machine") from None
    uid = int(user) if known is None else known.pw_uid
    if not 0 < uid < 2**32 - 1 or not 0 < gid < 2**32 - 1:
        raise _wrong(where, f"{text!r} is root, or nobody that the kernel knows; tasks run as another user")
    return Account(known.pw_name if known is not None else user, uid, gid, known.pw_dir if known is not None else "")


def prepare(settings: WorkerSettings, state: Path, name: str, interpreter: str) -> Path:
    """The folder for what tasks reach. Everything on the way to it must let these users pass."""
    root = Path(settings.tasks_dir) if settings.tasks_dir else state.with_name(f"{state.name}-tasks")
    tasks = root / name
    for folder in (root, tasks, tasks / HOMES, tasks / ATTEMPTS):
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        os.chown(folder, 0, 0)
        folder.chmod(0o711)
    os.setgroups([])  # what is done in a user's name is done without root's groups
    for one in {each.uid: each for each in settings.accounts.values()}.values():
        with acting_as(one.identity):
            if not _passes(tasks):
                raise BadInput(
                    f"worker.tasks_dir: the user {one.name} cannot reach {tasks}; name a folder by tasks_dir that all "
                    "may pass through",
                    [("worker.tasks_dir", "cannot be reached")],
                )
            if not _can_open(interpreter):
                _log.warning("the user %s cannot run %s: functions cannot be called here as it", one.name, interpreter)
    return tasks


def _passes(folder: Path) -> bool:
    """Asked of the kernel, as whoever acts."""
    try:
        os.stat(folder / HOMES)
    except OSError:
        return False
    return True


def _can_open(program: str) -> bool:
    try:
        os.close(os.open(program, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _wrong(where: str, what: str) -> BadInput:
    return BadInput(f"{where}: {what}", [(where, what)])
