"""`ostler config show`: what applies, and where it came from."""

import os
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostler import config
from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.render.terminal import show as show_parts
from ostler.cli.render.terminal import show_json
from ostler.cli.render.words import gib, span
from ostler.domain.errors import NotAuthenticated

if TYPE_CHECKING:
    from ostler.domain.retention import Retention


def show(access: Access, json: Json = False) -> int:
    """Show what applies here, and where each value came from."""
    found = settings(access)
    if json:
        show_json({"settings": found})
        return exits.DONE
    from ostler.cli.render.columns import Columns

    grid = Columns("setting", "value", "from", wrap="value")
    for row in found:
        grid.add(row["setting"], row["value"], row["from"])
    show_parts(grid)
    return exits.DONE


def settings(access: Access) -> list[dict[str, Any]]:
    state = config.state_dir(access.state_dir)
    return [
        {"setting": "hub", "value": config.hub_url(access.hub, state), "from": origin(access.hub, "hub")},
        {"setting": "state-dir", "value": str(state), "from": origin(access.state_dir, "state-dir")},
        _token(access, state),
        _ca(access, state),
        *_of_the_hub(state),
    ]


def _of_the_hub(state: Path) -> list[dict[str, Any]]:
    """What a hub of this state folder reads when it starts here."""
    from ostler.hub import settings as file

    path = config.config_file(None, state)
    found = file.load(path)
    source = "default" if path is None else str(path)
    limits = {"quotas": found.quotas.default, **{f"quotas.users.{user}": q for user, q in found.quotas.users.items()}}
    rows = [{"setting": "config", "value": str(path) if path else "none", "from": origin(None, "config")}]
    rows.append(_ledger(found.ledger, source, state))
    rows.append(_store(found.store, source, state))
    rows.append(_tls(found, source))
    rows.append({"setting": "retention", "value": _retention(found.retention), "from": source})
    rows += [
        {"setting": f"templates.{name}", "value": _told(one), "from": source} for name, one in found.templates.items()
    ]
    return rows + [{"setting": name, "value": _limits(quota), "from": source} for name, quota in limits.items()]


def _ledger(in_file: str, source: str, state: Path) -> dict[str, Any]:
    """Its address, without the password that may be in it."""
    from ostler.hub.ledgers import shown

    where = origin(None, "ledger")
    chosen = config.ledger_url("", in_file)
    return {
        "setting": "ledger",
        "value": shown(chosen, state),
        "from": source if where == "default" and in_file else where,
    }


def _store(in_file: str, source: str, state: Path) -> dict[str, Any]:
    where = origin(None, "store")
    return {
        "setting": "store",
        "value": config.store_shown("", in_file, state),
        "from": source if where == "default" and in_file else where,
    }


def _retention(chosen: "Retention") -> str:
    return ", ".join(f"{name} = {_limit(name, getattr(chosen, name))}" for name in chosen.__struct_fields__)


def _limit(name: str, value: float) -> str:
    if value == inf:
        return "never"
    if name == "most_jobs":
        return f"{value:.0f}"
    return gib(value / 1024**3) if name.startswith("most_") else span(value)


def _told(template: dict[str, Any]) -> str:
    import json

    return ", ".join(f"{field} = {json.dumps(value, ensure_ascii=False)}" for field, value in template.items())


def _limits(quota: Any) -> str:
    set_ones = [f"{name} = {getattr(quota, name)}" for name in quota.__struct_fields__ if getattr(quota, name)]
    return ", ".join(set_ones) or "no limit"


def _token(access: Access, state: Path) -> dict[str, Any]:
    """Whether there is one, never what it is."""
    source = origin(access.token, "token")
    if source == "default":
        source = str(state / config.TOKEN_FILES["admin"])
    try:
        config.read_token(access.token, state, "admin")
    except NotAuthenticated:
        return {"setting": "token", "value": "none", "from": f"{source}, which cannot be read"}
    return {"setting": "token", "value": "set", "from": source}


def _ca(access: Access, state: Path) -> dict[str, Any]:
    """By what hubs are known."""
    source, own = origin(access.ca, "ca"), state / config.CA_FILE
    if source != "default":
        return {"setting": "ca", "value": access.ca or os.environ["OSTLER_CA"], "from": source}
    return {"setting": "ca", "value": f"{own}, and the system's" if own.exists() else "the system's", "from": source}


def _tls(found: Any, source: str) -> dict[str, Any]:
    """How a hub that starts here is spoken to."""
    from ostler.hub import tls
    from ostler.tls import Wanted

    where = next((one for one in ("tls", "tls-cert") if origin(None, one) != "default"), "")
    chosen = tls.chosen(Wanted(), found)
    value = str(chosen.certificate) if chosen.certificate is not None else chosen.mode or "none"
    return {"setting": "tls", "value": value, "from": origin(None, where) if where else source if chosen else "default"}


def origin(flag: Any, name: str) -> str:
    """Where a setting comes from: its flag, its variable, or nowhere in particular."""
    variable = "OSTLER_" + name.upper().replace("-", "_")
    return f"--{name}" if flag else f"${variable}" if os.environ.get(variable) else "default"
