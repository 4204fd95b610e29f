"""Every setting: the variables that the code reads, and the keys of `ostler.toml`, with their defaults."""

import ast
import re
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from docs.generate.markdown import code, page, shown, table
from docs.generate.spec import VARIABLES as OF_TASKS
from docs.generate.spec import default_of, docstrings

import ostler
from ostler.domain.notices import NotifySettings
from ostler.domain.quota import Quota
from ostler.domain.retention import Retention
from ostler.hub import settings as hub
from ostler.hub.disk import DiskSettings
from ostler.hub.web.limits import Limits
from ostler.worker import accounts

SOURCE = Path(ostler.__file__).parent
VARIABLE = re.compile(r"OSTLER_[A-Z_]+[A-Z]")
INTRO = """Flags go first, then the `OSTLER_*` variables, then `ostler.toml` (in the state folder, or `--config`), then the defaults.
`ostler config show` prints what applies, and where each value came from.

    ostler config show
"""
VARIABLES = {
    "OSTLER_HUB": (
        "--hub",
        "the hub; several with commas between them. Default: what a hub of the state folder says, else "
        "`http://127.0.0.1:7600`",
    ),
    "OSTLER_TOKEN": (
        "--token",
        "the token, or `@FILE`. Default: `admin.token` in the state folder (of a worker: `join.token`)",
    ),
    "OSTLER_CA": (
        "--ca",
        "by what a hub with TLS is known: a file, or `sha256:FINGERPRINT`. Default: the hub's own authority on its "
        "machine, else what the system trusts",
    ),
    "OSTLER_STATE_DIR": (
        "--state-dir",
        "the folder of hub and workers. Default: the platform's data folder for `ostler`",
    ),
    "OSTLER_CONFIG": ("--config", "the settings file. Default: `ostler.toml` in the state folder"),
    "OSTLER_LEDGER": ("--ledger", "a PostgreSQL address in place of the state folder's own file"),
    "OSTLER_STORE": ("--store", "the folder or bucket of logs, artifacts and snapshots. Default: the state folder"),
    "OSTLER_URL": ("--url", "where others reach this hub"),
    "OSTLER_TLS": ("--tls", "`auto`: certificates of its own"),
    "OSTLER_TLS_CERT": ("--tls-cert", "a certificate of yours"),
    "OSTLER_TLS_KEY": ("--tls-key", "its key"),
    "OSTLER_CARRY": ("", "`0`: nothing of your environment travels with what you submit ([tracking](../tracking.md))"),
    "OSTLER_PROGRESS": ("", "`0`: cells of a notebook that wait show nothing ([Python](../python.md))"),
    "OSTLER_LOG_FORMAT": ("--log-format", "`json`: hub and worker write their own logs as one object a line"),
    "OSTLER_SNAPSHOT_CACHE_GB": ("", "how much of unpacked snapshots a worker keeps"),
}
INTERNAL = {"OSTLER_CALL", "OSTLER_RESULT", "OSTLER_ERROR", "OSTLER_BESIDE", "OSTLER_EVENT", "OSTLER_NOTICE"}
"""Between Ostler and what it starts; nobody sets them."""
TOP = {
    "ledger": "a PostgreSQL address: [postgresql.md](../postgresql.md)",
    "store": "the folder or bucket of logs, artifacts and snapshots: [storage.md](../storage.md)",
    "url": "where others reach this hub",
    "hosts": "what else it is called: [access.md](../access.md)",
    "tls": '`"auto"`: certificates of its own: [tls.md](../tls.md)',
    "tls_cert": "a file of yours, with `tls_key`",
    "tls_key": "its key",
}
S3 = {
    "endpoint": "the address of a store that is not Amazon's; else `AWS_ENDPOINT_URL`",
    "public_endpoint": "where workers and clients find it, if that is somewhere else",
    "region": "else `AWS_REGION`",
    "access_key_id": "else `AWS_ACCESS_KEY_ID`, `~/.aws`, or the machine's role",
    "secret_access_key": "its secret, which is never shown",
}
MEANING = {
    "running_gpus": "GPUs of one user that run at a time; 0: no limit",
    "running_jobs": "the same for jobs; each task of an array or a gang counts",
    "queued_jobs": "jobs of one user that may wait",
    "logs": "the same for logs",
    "artifacts": "the same for artifacts",
    "most_jobs": "where there are more, the oldest go first",
    "most_logs": "the same, in bytes",
    "hold_after": "a job that has waited for longer gets machines held for it; or `never`",
    "claim_lease": "a claim whose machine sends no heartbeat for so long is taken back; at least 120 s",
    "weights": "what an hour on one device of a type counts for its user; else its memory in 24 GiB",
    "run_as": "as whom tasks run: a user, or one for each of Ostler's users: [security.md](../security.md)",
    "tasks_dir": "where tasks have their folders, if other users must reach them",
    "memory_limit": "how many times the memory that it asked for a task may take before it is stopped; 0: no limit",
    "targets": "those that a job may name; each with `url`, `topic` or `command`",
    "allow": "networks inside the house that webhooks of jobs may reach",
    "ntfy": "where `ntfy:TOPIC` is published",
    "on": "what it hears of: `end`, `failed`, `lost`, `preempted`; else what the job says, else everything",
    "every": "of every job, whatever it says",
    "reserve": "what must stay free on the hub's disks: [ledger.md](../ledger.md). Default: 1g, of a small disk a twentieth",
}
TEMPLATES = """Any fields of [a spec](spec.md) but `id`, `template` and `user_id`: a team's usual job, by name. `ostler submit --template
NAME` lays it under the job's own.
"""
MODELS = "What the gateway serves: [every key](../gateway-config.md).\n"
DAY_S = 86_400


def settings() -> str:
    top = [key for key in hub.KEYS if key not in (*hub.TABLES, "worker")]
    return page(
        "Settings",
        INTRO,
        "## Variables\n",
        table(
            ("variable", "flag", "meaning"),
            [(code(name), code(flag), told) for name, (flag, told) in VARIABLES.items()],
        ),
        "## ostler.toml\n",
        table(("key", "meaning"), [(code(key), TOP[key]) for key in top]),
        *(f"### [{name}]\n\n{_table_of(name)}" for name in (*hub.TABLES, "worker")),
    )


def _table_of(name: str) -> str:
    known = {
        "templates": TEMPLATES,
        "models": MODELS,
        "gateway": MODELS,
        "quotas": "Everybody's; `[quotas.users.NAME]` for one.\n\n" + _keys(Quota),
        "retention": _keys(Retention) + "\n[retention.md](../retention.md) says more.\n",
        "limits": _keys(Limits),
        "disk": _keys(DiskSettings),
        "s3": _rows([(name, "") for name in hub.S3_KEYS], S3) + "\n[storage.md](../storage.md) says more.\n",
        "scheduling": _rows([("hold_after", "10m"), ("weights", {}), ("claim_lease", "10m")], {}),
        "notify": "Who is told what becomes of jobs: [terminal.md](../terminal.md).\n\n"
        + _keys(NotifySettings)
        + "\n`[notify.targets.NAME]` has one of `url`, `topic` and `command`, and:\n\n"
        + _rows([("on", []), ("every", False)], {}),
        "worker": _rows([("run_as", {}), ("tasks_dir", ""), ("memory_limit", accounts.MEMORY_LIMIT)], {}),
    }
    if name not in known:
        raise SystemExit(
            f"reference: the table [{name}] of ostler.toml is not described; add it to docs/generate/settings.py"
        )
    return known[name]


def _keys(kind: type[msgspec.Struct]) -> str:
    fields = msgspec.structs.fields(kind)
    return _rows([(field.name, _spelled(kind, field.name, default_of(field))) for field in fields], docstrings(kind))


def _rows(found: list[tuple[str, Any]], said: dict[str, str]) -> str:
    rows = []
    for name, default in found:
        told = MEANING.get(name) or said.get(name)
        if not told:
            raise SystemExit(
                f"reference: {name} has no meaning; give it a docstring, or a line in docs/generate/settings.py"
            )
        rows.append((code(name), shown(default), told.rstrip(".")))
    return table(("key", "if left out", "meaning"), rows)


def _spelled(kind: type, name: str, default: Any) -> Any:
    """As one would write it in the file."""
    if kind is not Retention:
        return default
    if default == inf:
        return "never"
    if name == "most_jobs":
        return default
    return f"{default / 1024**3:g}g" if name.startswith("most_") else f"{default / DAY_S:g}d"


def variables_in_the_code() -> set[str]:
    return {name for path in SOURCE.rglob("*.py") for name in _named_in(path)}


def undescribed() -> set[str]:
    return variables_in_the_code() - VARIABLES.keys() - OF_TASKS.keys() - INTERNAL


def _named_in(path: Path) -> Iterator[str]:
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "OSTLER_" in text else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value):
            yield node.value
