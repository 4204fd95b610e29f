"""The parts that run: a hub, a worker, or both for this machine."""

import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostler import config, logformat
from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.session import warn_of_argv
from ostler.domain.errors import BadInput

if TYPE_CHECKING:
    from ostler.tls import Wanted

StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", metavar="DIR", help="Where the state lives; else $OSTLER_STATE_DIR, else the platform's."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Templates, quotas, models and gateway; else $OSTLER_CONFIG, else ostler.toml in the state folder.",
    ),
]
ManifestFile = Annotated[
    Path | None,
    typer.Option(
        "--manifest", metavar="FILE", help="A training manifest (TOML) that the queue follows from the start."
    ),
]
LedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="A PostgreSQL database, like postgresql://user@host/name; else $OSTLER_LEDGER, else ostler.toml's, "
        "else a file in the state folder.",
        show_default=False,
    ),
]
StoreDir = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="PLACE",
        help="Where logs, artifacts, snapshots and checkpoints are, for all hubs on one ledger: a folder, a bucket "
        "like s3://bucket/prefix, or both with a comma between; else $OSTLER_STORE, ostler.toml's, the state folder.",
        show_default=False,
    ),
]
OwnUrl = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="Where workers, clients and other hubs reach this one, if not where it listens.",
        show_default=False,
    ),
]
Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Listen here; 0.0.0.0 for other machines, with TLS.")
]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Listen on this port; 0: a free one.")]
Tls = Annotated[
    str,
    typer.Option(
        "--tls",
        metavar="auto",
        help="Speak TLS with certificates of the hub's own making; else $OSTLER_TLS, else ostler.toml's.",
        show_default=False,
    ),
]
TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Speak TLS with this certificate and those above it.")
]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The key to --tls-cert.")]
GatewayPort = Annotated[
    int,
    typer.Option(
        "--gateway-port", metavar="N", min=0, max=65535, help="Models are called here, where any are configured."
    ),
]
LogFormat = Annotated[
    str,
    typer.Option(
        "--log-format",
        metavar="text|json",
        help="How this program writes its own log; else $OSTLER_LOG_FORMAT, else text.",
        show_default=False,
    ),
]
LogLevel = Annotated[str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]
Leashed = Annotated[bool, typer.Option("--stop-on-eof", hidden=True, help="Stop when standard input ends.")]
System = Annotated[
    bool | None,
    typer.Option(
        "--system/--user", help="A service of the whole machine (root's), or of your own user.", show_default=False
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the service's file; install nothing.")]

LEVELS = ("debug", "info", "warning", "error")


def hub(
    ctx: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = config.DEFAULT_PORT,
    gateway_port: GatewayPort = config.DEFAULT_GATEWAY_PORT,
    state_dir: StateDir = None,
    config_file: ConfigFile = None,
    manifest: ManifestFile = None,
    ledger: LedgerUrl = "",
    store: StoreDir = "",
    url: OwnUrl = "",
    tls: Tls = "",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "",
    stop_on_eof: Leashed = False,
    install: Annotated[bool, typer.Option("--install", help="As a service of this machine, from now on.")] = False,
    system: System = None,
    dry_run: DryRun = False,
) -> int:
    """Run a hub: it keeps the jobs and places them on workers."""
    if log_level not in LEVELS:
        raise BadInput(f"--log-level: {log_level!r} is not one of {', '.join(LEVELS)}")
    state = config.state_dir(state_dir)
    config.refuse_password(ledger, "--ledger")
    if install or dry_run:
        from ostler.cli.enrol import install_hub

        wanted = chosen_tls(host, (tls, tls_cert, tls_key), config.config_file(config_file, state))
        return install_hub(ctx, state, reached_at(host, port, bool(wanted)), system, dry_run)
    if stop_on_eof:
        leash()
    from ostler.hub.main import HubOptions, run
    from ostler.tls import Wanted

    options = HubOptions(
        host=host,
        port=port,
        gateway_port=gateway_port,
        state_dir=state,
        log_level=log_level,
        log_format=logformat.chosen(log_format),
        config=config_file,
        manifest=manifest,
        ledger=ledger,
        store=store,
        url=url,
        tls=Wanted(tls, tls_cert, tls_key),
    )
    return run(options)


def chosen_tls(host: str, given: "tuple[str, Path | None, Path | None]", settings: Path | None) -> "Wanted":
    """How a hub that listens there is to be spoken to; refused where others could listen in."""
    from ostler.hub import tls
    from ostler.hub.settings import load
    from ostler.tls import Wanted

    chosen = tls.chosen(Wanted(*given), load(settings))
    tls.refuse_open_without(host, chosen)
    return chosen


def reached_at(host: str, port: int, with_tls: bool = False) -> str:
    """From this machine, a hub that listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http{'s' if with_tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True)
class Offering:
    """What a worker puts at the fleet's disposal."""

    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="The worker's id; this machine's name if not given.")
    ] = None
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="K=V", help="A label that jobs may ask for. Repeatable.")
    ] = None
    slots: Annotated[
        int | None,
        typer.Option("--slots", metavar="N", min=0, help="Batch tasks at once; as many as cores if not given."),
    ] = None
    service_slots: Annotated[
        int | None, typer.Option("--service-slots", metavar="N", min=0, help="Services at once; likewise.")
    ] = None
    offer: Annotated[
        Path | None, typer.Option("--offer", metavar="FILE", help="Offer what this TOML file says, detect nothing.")
    ] = None
    drain_seconds: Annotated[
        float,
        typer.Option("--drain-seconds", metavar="S", min=0, help="When told to stop: how long tasks may go on."),
    ] = 600.0


def worker(
    ctx: typer.Context,
    access: Access,
    offering: Offering,
    check: Annotated[
        bool, typer.Option("--check", help="Print what this machine has and is fit for; start nothing.")
    ] = False,
    json: Json = False,
    log_format: LogFormat = "",
    stop_on_eof: Leashed = False,
) -> int:
    """Run a worker for this machine, or look after one of the fleet."""
    ctx.obj = access
    if ctx.invoked_subcommand is not None:
        return exits.DONE
    if check:
        return _check(offering.offer, json)
    state, labels = config.state_dir(access.state_dir), read_labels(offering.label or [])
    warn_of_argv(access.token)
    if stop_on_eof:
        leash()
    from ostler.worker.main import WorkerOptions, run

    return run(
        WorkerOptions(
            hub=config.hub_url(access.hub, state),
            token=config.read_token(access.token, state, "join"),
            token_file=config.token_file(access.token, state, "join"),
            trust=config.trust(access.ca, state),
            name=offering.name or socket.gethostname(),
            labels=labels,
            slots=offering.slots,
            service_slots=offering.service_slots,
            offer=offering.offer,
            state_dir=state,
            drain_seconds=offering.drain_seconds,
            log_format=logformat.chosen(log_format),
        )
    )


def read_labels(given: list[str]) -> dict[str, str]:
    labels = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            raise BadInput(f"--label: {text!r} is not a label; write it like zone=eu", [("label", "not K=V")])
        labels[name.strip()] = value.strip()
    return labels


def leash() -> None:
    """Stop this program as Ctrl-C would when whoever holds the other end of standard input is gone, however it went."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="leash", daemon=True).start()


def _check(offer: Path | None, as_json: bool) -> int:
    from ostler.runtime import probe

    found = probe.Detection(capabilities=probe.load_offer(offer)) if offer else probe.detect()
    fit_for = probe.describe(found.capabilities)
    if as_json:
        import msgspec

        from ostler.cli.render.terminal import show_json

        show_json({**msgspec.to_builtins(found), "fit_for": fit_for})
    else:
        from ostler.cli.render.check import check_screen
        from ostler.cli.render.terminal import show

        show(check_screen(found.capabilities, found.memory_available_gb, fit_for, found.notes))
    return exits.DONE if fit_for else exits.FAILED


def up(
    host: Host = "127.0.0.1",
    port: Port = config.DEFAULT_PORT,
    gateway_port: GatewayPort = config.DEFAULT_GATEWAY_PORT,
    state_dir: StateDir = None,
    tls: Tls = "",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> int:
    """Run a hub and a worker for this machine, until Ctrl-C."""
    from ostler.cli.up import bring_up

    state = config.state_dir(state_dir)
    wanted = chosen_tls(host, (tls, tls_cert, tls_key), config.config_file(None, state))
    return bring_up(host, port, gateway_port, state_dir, wanted)
