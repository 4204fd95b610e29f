"""What an operator does beside the hub, on its own machine: backups, and a look whether all is well."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler import config
from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.programs import ConfigFile, LedgerUrl, StateDir, StoreDir
from ostler.cli.render.terminal import note, show_json
from ostler.cli.render.words import clean
from ostler.domain.errors import OstlerError

if TYPE_CHECKING:
    from ostler.tls import Trust

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]


def backup(
    file: BackupFile,
    state_dir: StateDir = None,
    config_file: ConfigFile = None,
    ledger: LedgerUrl = "",
    store: StoreDir = "",
) -> int:
    """Write one consistent moment of the ledger to a file, while the hub runs."""
    from ostler.hub import keeping

    where = keeping.place(config.state_dir(state_dir), config_file, ledger, store)
    size = keeping.backup(where, file.expanduser())
    print(f"{file}: {size / 1024**2:.1f} MiB, of {where.file}")
    note(f"{keeping.FOLDERS} are not in it: copy them, after this, from {where.bucket or where.store}")
    return exits.DONE


def restore(
    file: BackupFile,
    state_dir: StateDir = None,
    config_file: ConfigFile = None,
    ledger: LedgerUrl = "",
    store: StoreDir = "",
) -> int:
    """Put a backup in the place of the ledger. The hub must be stopped."""
    from ostler.hub import keeping

    where = keeping.place(config.state_dir(state_dir), config_file, ledger, store)
    aside = keeping.restore(where, file.expanduser())
    print(f"{where.file} is now {file}")
    if aside is not None:
        note(f"what there was before is {aside}")
    note("start the hub; tasks that were begun after the backup was made are unknown to it, and are stopped")
    return exits.DONE


def doctor(
    access: Access,
    config_file: ConfigFile = None,
    ledger: LedgerUrl = "",
    store: StoreDir = "",
    json: Json = False,
) -> int:
    """Look at the hub's files, its ledger and the hubs themselves, and say what is not well."""
    from ostler.hub import keeping

    state = config.state_dir(access.state_dir)
    found = [
        {"what": finding.what, "ok": finding.ok, "told": finding.told}
        for finding in keeping.examine(keeping.place(state, config_file, ledger, store))
    ]
    found += [_hub(url, config.trust(access.ca, state)) for url in config.hub_url(access.hub, state).split(",")]
    if json:
        show_json({"findings": found})
    else:
        for finding in found:
            print(f"{'ok' if finding['ok'] else 'failed':<7} {finding['what']:<8} {clean(finding['told'])}")
    return exits.DONE if all(finding["ok"] for finding in found) else exits.FAILED


def _hub(url: str, trust: "Trust") -> dict[str, Any]:
    from ostler.client.http import Hub
    from ostler.client.transport import Patience

    try:
        with Hub(url, patience=Patience(tries=1), trust=trust) as hub:
            said = hub.health()
    except OstlerError as error:
        return {"what": "hub", "ok": False, "told": str(error)}
    term = f", term {said['term']}" if "term" in said else ""
    return {"what": "hub", "ok": True, "told": f"{url}, {said.get('role', 'up')}{term}, version {said.get('version')}"}
