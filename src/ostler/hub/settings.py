"""`ostler.toml`: what an operator decides beforehand. Read when the hub starts; its models, again when it changes.

ledger = "postgresql://ostler:…@db/ostler"     # in place of a file in the state folder: docs/postgresql.md
store = "/srv/ostler"                          # where logs and artifacts are, for all hubs on that ledger: docs/hubs.md
                                               # or "s3://bucket/prefix": docs/storage.md
url = "https://hub-a.example:7600"             # where others reach this hub
hosts = ["ostler.lab.example"]                 # what else it is called: docs/access.md
tls = "auto"                                   # or tls_cert and tls_key, two files: docs/tls.md

[templates.finetune]            # any fields of a spec: a team's usual job, by name
gpu_count = 1
env = { HF_HOME = "/data/hf" }

[quotas]                        # everybody's; 0 or left out: no limit
running_gpus = 4
[quotas.users.ann]              # what is left out here is everybody's
running_gpus = 8

[retention]                     # what has ended is kept for so long, counted from its end; or "never" removed
jobs = "90d"                    # docs/retention.md
logs = "30d"

[scheduling]
hold_after = "10m"              # a job that waits for longer gets machines held for it; or "never"
claim_lease = "10m"             # a claim without a heartbeat for so long is given to another machine
[scheduling.weights]            # what an hour on one device counts for its user; else its memory, in 24 GiB
a100 = 3.0

[limits]                        # how often one may ask: docs/access.md
requests_per_s = 2000
burst = 20000
failed_logins = 5

[s3]                            # of a store in a bucket, what AWS_* variables do not say: docs/storage.md
endpoint = "https://minio.lab.example:9000"

[disk]                          # where less is free, nothing new is taken in: docs/ledger.md
reserve = "2g"

[notify.targets.team]           # who is told what became of jobs that name it: docs/terminal.md
url = "https://hooks.example/T0/B1"

[models.qwen]                   # what the gateway serves: docs/gateway-config.md
cmd = "llama-server --port ${PORT} -m /models/qwen.gguf"
[gateway]
scheduler = "fifo"
"""

import json
import os
import re
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from ostler.domain.errors import BadInput, Unreadable
from ostler.domain.job import decode_spec
from ostler.domain.notices import NotifySettings, read_notify
from ostler.domain.origins import host_of
from ostler.domain.quota import GATEWAY_USER, Quota, Quotas
from ostler.domain.retention import Retention, read_retention
from ostler.domain.scheduling import (
    CLAIM_LEASE_S,
    HOLD_AFTER_S,
    NEVER,
    Scheduling,
    parse_claim_lease,
    parse_hold_after,
)
from ostler.gateway import config as gateway_config
from ostler.gateway.settings import GatewaySettings
from ostler.gateway.spelling import spell
from ostler.hub.disk import DiskSettings, read_disk
from ostler.hub.web.limits import Limits
from ostler.manifest.locate import Path as TomlPath
from ostler.manifest.locate import locate

_PART = re.compile(r'"(?:[^"\\]|\\.)*"|\[\d+\]|[^.\["]+')
TABLES = ("templates", "quotas", "scheduling", "retention", "limits", "disk", "s3", "notify", "models", "gateway")
KEYS = (*TABLES, "worker", "ledger", "store", "url", "hosts", "tls", "tls_cert", "tls_key")
S3_KEYS = ("endpoint", "public_endpoint", "region", "access_key_id", "secret_access_key")
MAX_WEIGHT = 1000.0
Template = dict[str, Any]
NOT_IN_A_TEMPLATE = {
    "id": "a template stands for many jobs, each with an id of its own",
    "template": "a template cannot be laid over another one",
    "user_id": "whose job it is follows from the token that submits it",
}


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    templates: dict[str, Template] = {}
    quotas: Quotas = msgspec.field(default_factory=Quotas)
    scheduling: Scheduling = Scheduling()
    retention: Retention = Retention()
    gateway: GatewaySettings = GatewaySettings()
    ledger: str = ""
    """Its address, perhaps with a password."""
    store: str = ""
    url: str = ""
    hosts: list[str] = []
    """What it is called beside that."""
    limits: Limits = Limits()
    disk: DiskSettings = DiskSettings()
    s3: dict[str, str] = {}
    """Of the bucket, perhaps with its key."""
    notify: NotifySettings = NotifySettings()
    tls: str = ""
    tls_cert: str = ""
    tls_key: str = ""


def load(path: Path | None) -> Settings:
    """The settings in this file; those of a hub without one where there is none."""
    if path is None:
        return Settings()
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", [("config", "cannot be read")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path}: is not TOML: {error}", [("config", "not TOML")]) from None
    try:
        return _settings(table)
    except BadInput as error:
        raise _by_line(path, text, error) from None


def _by_line(path: Path, text: str, error: BadInput) -> BadInput:
    """The same, each mistake with the line that it is in."""
    paths = [(_path_of(where), where, what) for where, what in error.errors]
    lines = locate(text, [path for path, *_ in paths])
    errors = [
        (f"{path}:{lines[key]}: {where}", what) for key, where, what in sorted(paths, key=lambda one: lines[one[0]])
    ]
    return BadInput("\n".join(f"{where}: {what}" for where, what in errors) or f"{path}: {error}", errors)


def _path_of(where: str) -> TomlPath:
    """`models."qwen2.5".aliases[0]`, as the parts it is spelled from."""
    parts = (found[0] for found in _PART.finditer(where))
    return tuple(int(part[1:-1]) if part[0] == "[" else json.loads(part) if part[0] == '"' else part for part in parts)


def _settings(table: dict[str, Any]) -> Settings:
    _must_be_known(table, KEYS, "")
    templates = _table(table.get("templates", {}), "templates")
    return Settings(
        templates={name: _template(name, given) for name, given in templates.items()},
        quotas=_quotas(_table(table.get("quotas", {}), "quotas")),
        scheduling=_scheduling(_table(table.get("scheduling", {}), "scheduling")),
        retention=read_retention(_table(table.get("retention", {}), "retention")),
        gateway=gateway_config.read(
            _table(table.get("models", {}), "models"), _table(table.get("gateway", {}), "gateway"), os.environ
        ),
        ledger=_text(table, "ledger", "an address in quotes, like 'postgresql://USER@HOST/DATABASE'"),
        store=_text(table, "store", "a place in quotes, like '/srv/ostler' or 's3://bucket/prefix'"),
        url=_text(table, "url", "an address in quotes, like 'https://hub-a.example:7600'"),
        hosts=_hosts(table.get("hosts", [])),
        limits=_limits(_table(table.get("limits", {}), "limits")),
        disk=read_disk(_table(table.get("disk", {}), "disk")),
        s3=_s3(_table(table.get("s3", {}), "s3")),
        notify=read_notify(_table(table.get("notify", {}), "notify")),
        tls=_text(table, "tls", "'auto'"),
        tls_cert=_text(table, "tls_cert", "a file in quotes, like '/etc/ostler/hub.pem'"),
        tls_key=_text(table, "tls_key", "a file in quotes, like '/etc/ostler/hub.key'"),
    )


def _text(table: dict[str, Any], key: str, what: str) -> str:
    given = table.get(key, "")
    if not isinstance(given, str):
        raise _wrong(key, f"must be {what}")
    return given


def _s3(table: dict[str, Any]) -> dict[str, str]:
    _must_be_known(table, S3_KEYS, "s3.")
    for key, value in table.items():
        if not isinstance(value, str):
            raise _wrong(f"s3.{key}", "must be text in quotes")
        if key.endswith("endpoint") and not value.startswith(("http://", "https://")):
            raise _wrong(f"s3.{key}", "must be an address in quotes, like 'https://minio.lab.example:9000'")
    return table


def _hosts(given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) and host_of(name) for name in given):
        raise _wrong("hosts", "must be a list of names in quotes, like ['ostler.lab.example', 'https://ostler.lab']")
    return given


def _limits(table: dict[str, Any]) -> Limits:
    _must_be_known(table, Limits.__struct_fields__, "limits.")
    try:
        return msgspec.convert(table, Limits)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise _wrong("limits" + where.strip("`"), what) from None


def _quotas(table: dict[str, Any]) -> Quotas:
    everybody = {key: value for key, value in table.items() if key != "users"}
    _must_be_known(table, (*Quota.__struct_fields__, "users"), "quotas.")
    users = _table(table.get("users", {}), "quotas.users")
    if GATEWAY_USER in users:
        raise _wrong(spell("quotas", "users", GATEWAY_USER), "no quota limits models; [models] says which there are")
    return Quotas(
        default=_quota(everybody, "quotas"),
        users={name: _users_quota(name, given, everybody) for name, given in users.items()},
    )


def _scheduling(table: dict[str, Any]) -> Scheduling:
    _must_be_known(table, ("hold_after", "weights", "claim_lease"), "scheduling.")
    weights = _table(table.get("weights", {}), "scheduling.weights")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight <= MAX_WEIGHT:
            raise _wrong(
                spell("scheduling", "weights", name), f"must be a number above 0 and no more than {MAX_WEIGHT:g}"
            )
    hold_after = table.get("hold_after", HOLD_AFTER_S)
    if isinstance(hold_after, bool) or not isinstance(hold_after, (str, int, float)):
        raise _wrong("scheduling.hold_after", f"must be a duration like '10m', or {NEVER!r}")
    claim_lease = table.get("claim_lease", CLAIM_LEASE_S)
    if isinstance(claim_lease, bool) or not isinstance(claim_lease, (str, int, float)):
        raise _wrong("scheduling.claim_lease", "must be a duration like '10m'")
    return Scheduling(
        hold_after_s=parse_hold_after(hold_after, "scheduling.hold_after"),
        weights={name.lower(): float(weight) for name, weight in weights.items()},
        claim_lease_s=parse_claim_lease(claim_lease, "scheduling.claim_lease") if "claim_lease" in table else 0.0,
    )


def _users_quota(name: str, given: Any, everybody: dict[str, Any]) -> Quota:
    where = spell("quotas", "users", name)
    own = _table(given, where)
    _must_be_known(own, Quota.__struct_fields__, f"{where}.")
    return _quota({**everybody, **own}, where)


def _quota(table: dict[str, Any], where: str) -> Quota:
    try:
        return msgspec.convert(table, Quota)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        raise _wrong(where + path.strip("`"), what) from None


def _template(name: str, given: Any) -> Template:
    where = spell("templates", name) + "."
    table = _table(given, where.rstrip("."))
    for field, why in NOT_IN_A_TEMPLATE.items():
        if field in table:
            raise _wrong(where + field, f"must not be in a template: {why}")
    # A template need not name a command, but whatever it holds is held to what a spec is held to.
    try:
        decode_spec(msgspec.json.encode({"command": ["true"], **table}), where)
    except BadInput as error:
        told = [f"{field}: {what}" for field, what in error.errors]
        raise BadInput("; ".join(told) or f"{where}: {error}", error.errors) from None
    plain: Template = msgspec.json.decode(msgspec.json.encode(table))
    return plain


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, f"must be a table: [{where}]")
    return value


def _must_be_known(table: dict[str, Any], known: Iterable[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise _wrong(where + spell(key), f"unknown key {key!r}{nearest(key, known)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean …?', or all there is where nothing is near."""
    known = list(known)
    close = get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(known)}" if known else ""


def _wrong(where: str, what: str) -> BadInput:
    return BadInput(f"{where}: {what}", [(where, what)])
