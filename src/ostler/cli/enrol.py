"""Machines that come and go: `ostler join`, `ostler leave`, and a hub as a service of its machine."""

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler import config
from ostler.cli import exits
from ostler.cli.options import Ca
from ostler.cli.programs import DryRun, Offering, StateDir, System, read_labels
from ostler.cli.render.terminal import note
from ostler.cli.render.words import clean
from ostler.domain.errors import BadInput, Conflict, NotAuthenticated, OstlerError
from ostler.domain.hubs import same_fleet
from ostler.domain.joining import read_invitation
from ostler.domain.names import worker_name
from ostler.tls import PIN, Trust

if TYPE_CHECKING:
    from ostler.cli.enrolment import Enrolment, Enrolments
    from ostler.units.install import Manager
    from ostler.units.service import Scope, Service

READY_WITHIN_S = 60.0
LOOK_S = 0.25

ABOUT_THE_SERVICE = ("install", "system", "dry_run")
"""Options of `ostler hub` that are no part of the service's own command line."""


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="The hub, like https://hub:7600.")],
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="As `ostler token create --join` prints it, or @ and a file.")
    ],
    offering: Offering,
    ca: Ca = None,
    state_dir: StateDir = None,
    system: System = None,
    pull: Annotated[
        bool, typer.Option("--pull", help="Ask for work over plain HTTP, where no connection stays open.")
    ] = False,
    dry_run: DryRun = False,
    no_start: Annotated[bool, typer.Option("--no-start", help="Install the service, start it later.")] = False,
) -> int:
    """Enrol this machine at a hub, and run a worker here as a service."""
    from ostler.cli.enrolment import Enrolment, Enrolments, worker_service
    from ostler.units import install

    state = config.state_dir(state_dir)
    pull = pull or sys.platform == "win32"  # the worker that keeps a connection needs POSIX
    _refuse_what_pull_cannot(offering, pull)
    fingerprint, given = read_invitation(config.read_token(token, state, "join"))
    enrolments, hub = Enrolments(state), config.hub_url(url)
    name = worker_name(offering.name or socket.gethostname())
    known = _known_by(enrolments.read(name), enrolments, hub, fingerprint, ca)
    enrolment = Enrolment(
        hub=hub, name=name, scope=install.usual_scope(_scope(system)), pull=pull, ca=bool(known) and "https:" in hub
    )
    keeper, service = install.manager(enrolment.scope), worker_service(enrolment, offering, state)
    if dry_run:
        return _show(keeper, service)
    _refuse_another_hub(enrolments.read(enrolment.name), enrolment)
    trust = Trust(known) if known else config.trust(None, state)
    own = _own_token(enrolments, enrolment, trust)
    if not _passes(enrolment, own or given, state, trust):
        exits.complain("this machine did not join: nothing was registered and nothing installed")
        return exits.FAILED
    _enrol(enrolments, enrolment, own, given, trust)
    if not keeper.is_present():
        return _leave_it_to_the_user(service)
    return _serve(enrolments, enrolment, keeper, service, not no_start)


def leave(
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="Which worker, where this machine has several.")
    ] = None,
    state_dir: StateDir = None,
) -> int:
    """Stop and remove this machine's worker service, and give its token back to the hub."""
    from ostler.cli.enrolment import Enrolments
    from ostler.units import install

    enrolments = Enrolments(config.state_dir(state_dir))
    enrolment = enrolments.the_one(name)
    keeper = install.manager(install.usual_scope(enrolment.scope))
    if keeper.is_present():
        note(f"stopping {enrolment.name}: tasks that run there may finish first")
        keeper.remove(enrolment.service)
    else:
        keeper.path(enrolment.service).unlink(missing_ok=True)
    _give_back(enrolments, enrolment)
    enrolments.forget(enrolment.name)
    print(f"{enrolment.name} has left {enrolment.hub}")
    return exits.DONE


def install_hub(ctx: typer.Context, state: Path, url: str, system: bool | None, dry_run: bool) -> int:
    """The hub that this command line describes, as a service of the machine."""
    from ostler.cli.enrolment import hub_service
    from ostler.client.http import Hub
    from ostler.client.transport import Patience
    from ostler.units import install

    scope = install.usual_scope(_scope(system))
    keeper, service = install.manager(scope), hub_service(options_of(ctx, state), scope, state)
    if dry_run:
        return _show(keeper, service)
    if not keeper.is_present():
        return _leave_it_to_the_user(service)
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    install.install(keeper, service, start=True)

    def answers() -> bool:
        """By its own authority, which is there once it has started."""
        with Hub(url, patience=Patience(tries=1), trust=config.trust(None, state)) as hub:
            return bool(hub.health())

    if not _happens(answers):
        exits.complain(f"the service was started, but no hub answers at {url}; see: {keeper.hint(service.name)}")
        return exits.TIMED_OUT
    print(f"the hub runs as {service.name}: {url}")
    _say_what_lasts(keeper)
    note("`ostler token create --join` makes a token for another machine")
    return exits.DONE


def _known_by(known: "Enrolment | None", enrolments: "Enrolments", hub: str, fingerprint: str, ca: str | None) -> str:
    """By what the hub is known here: as the join token says, as given, as when this machine joined it before; or, if
    nothing is said, by what the system trusts."""
    if not all(one.startswith("https:") for one in hub.split(",")):
        if fingerprint or ca:
            raise BadInput(
                f"hub: this one is known by its certificate, so it is https://, not {hub}", [("hub", "no TLS")]
            )
        return ""
    if fingerprint:
        return f"{PIN}{fingerprint}"
    if given := ca or os.environ.get("OSTLER_CA"):
        return given
    return str(enrolments.ca_file(known.name)) if known is not None and known.ca and same_fleet(known.hub, hub) else ""


def options_of(ctx: typer.Context, state: Path) -> list[str]:
    """What was typed, or set in the environment, as words that mean the same wherever and whenever they are read."""
    given: dict[str, Any] = {
        name: value
        for name, value in ctx.params.items()
        if str(ctx.get_parameter_source(name)).endswith("COMMANDLINE") and name not in ABOUT_THE_SERVICE
    }
    if variable := os.environ.get("OSTLER_CONFIG"):
        given.setdefault("config_file", variable)
    if variable := os.environ.get("OSTLER_LEDGER"):
        config.refuse_password(variable, "OSTLER_LEDGER")
        given.setdefault("ledger", variable)
    for option in ("store", "url", "tls", "tls_cert", "tls_key"):
        if variable := os.environ.get(f"OSTLER_{option.upper()}"):
            given.setdefault(option, variable)
    given["state_dir"] = state
    words = []
    for parameter in ctx.command.params:
        value = given.get(parameter.name or "")
        if value is not None:
            is_path = parameter.type.name == "path"
            told = Path(value).expanduser().absolute() if is_path else value
            if parameter.name == "store":
                told = config.store_shown(value, "", state)
            words += [max(parameter.opts, key=len), str(told)]
    return words


def _scope(system: bool | None) -> "Scope | None":
    return None if system is None else "system" if system else "user"


def _refuse_what_pull_cannot(offering: Offering, pull: bool) -> None:
    read_labels(offering.label or [])
    wanted = {
        "--label": offering.label,
        "--slots": offering.slots,
        "--service-slots": offering.service_slots,
        "--offer": offering.offer,
    }
    for option, value in wanted.items():
        if pull and value is not None:
            raise BadInput(
                f"{option}: a worker that asks for work over plain HTTP has none; leave it out",
                [(option, "not with --pull")],
            )


def _show(keeper: "Manager", service: "Service") -> int:
    text = keeper.text(service)
    print(text.decode("utf-16" if text[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"), end="")
    note(f"this would be {keeper.path(service.name)}")
    return exits.DONE


def _refuse_another_hub(known: "Enrolment | None", wanted: "Enrolment") -> None:
    if known is not None and not same_fleet(known.hub, wanted.hub):
        raise Conflict(
            f"{known.name} of this machine serves {known.hub}; `ostler leave --name {known.name}` ends that, "
            "and with --name the machine can serve both"
        )
    if known is not None and known.scope != wanted.scope:
        raise Conflict(
            f"{known.name} is a service of {'the whole machine' if known.scope == 'system' else 'a user'} already; "
            f"join it with --{known.scope}, or `ostler leave --name {known.name}` first"
        )


def _own_token(enrolments: "Enrolments", enrolment: "Enrolment", trust: Trust) -> str:
    """The token that this machine has from an earlier time, where the hub still takes it."""
    from ostler.cli.selftest import PATIENCE
    from ostler.client.http import Hub

    token = enrolments.token(enrolment.name)
    if not token:
        return ""
    try:
        with Hub(enrolment.hub, token, patience=PATIENCE, trust=trust) as hub:
            return token if hub.seen()["name"] == enrolment.name else ""
    except OstlerError:
        return ""


def _passes(enrolment: "Enrolment", token: str, state: Path, trust: Trust) -> bool:
    from ostler.cli import selftest

    spawns = selftest.spawn_plainly if enrolment.pull else selftest.spawn_supervised
    passes = True
    for check in selftest.checks(enrolment.hub, token, state, spawns, trust):
        print(f"{'ok' if check.ok else 'failed':<7} {check.what:<8} {clean(check.told)}", flush=True)
        passes = passes and check.ok
    return passes


def _enrol(enrolments: "Enrolments", enrolment: "Enrolment", own: str, given: str, trust: Trust) -> None:
    from ostler.client.http import Hub

    if own:
        note(
            f"{enrolment.name} is enrolled already; its service is brought up to date, and the given token is not spent"
        )
    else:
        with Hub(enrolment.hub, given, trust=trust) as hub:
            own = hub.enrol(enrolment.name)
        print(f"{'ok':<7} {'enrolled':<8} as {enrolment.name}", flush=True)
    enrolments.keep(enrolment, own, trust.certificates())


def _leave_it_to_the_user(service: "Service") -> int:
    from ostler.units import install

    note("no keeper of services answers here (in a container there is none); keep this running by other means:")
    print(install.shown(service.argv))
    return exits.DONE


def _serve(enrolments: "Enrolments", enrolment: "Enrolment", keeper: "Manager", service: "Service", start: bool) -> int:
    from ostler.client.http import Hub
    from ostler.client.transport import Patience
    from ostler.units import install

    token = enrolments.token(enrolment.name)
    with Hub(enrolment.hub, token, patience=Patience(tries=1), trust=enrolments.trust(enrolment)) as hub:
        before = _mark(hub.seen(), enrolment)
        try:
            install.install(keeper, service, start=start)
        except (OSError, OstlerError):
            note("no service was installed; the join token is spent, but this machine has its own now: join again")
            raise
        if not start:
            print(f"{'ok':<7} {'service':<8} {service.name}, to be started")
            return exits.DONE
        print(f"{'ok':<7} {'service':<8} {service.name}, started", flush=True)
        if not _happens(lambda: _has_come(hub.seen(), enrolment, before)):
            told = f"the hub has not heard from {enrolment.name} within {READY_WITHIN_S:.0f} s"
            exits.complain(f"{told}; the service goes on trying, and says why: {keeper.hint(service.name)}")
            return exits.TIMED_OUT
    print(f"{'ok':<7} {'ready':<8} {enrolment.hub} has {enrolment.name}")
    _say_what_lasts(keeper)
    return exits.DONE


def _mark(seen: dict[str, Any], enrolment: "Enrolment") -> Any:
    """Differs once a worker has come that was started later."""
    return seen["last_contact" if enrolment.pull else "registered_at"]


def _has_come(seen: dict[str, Any], enrolment: "Enrolment", before: Any) -> bool:
    return seen["status"] in ("ready", "busy") and _mark(seen, enrolment) != before


def _say_what_lasts(keeper: "Manager") -> None:
    from ostler.units import install

    if install.may_end_with_its_user(keeper):
        note("it ends when you log out; `loginctl enable-linger` keeps it, and starts it with the machine")


def _give_back(enrolments: "Enrolments", enrolment: "Enrolment") -> None:
    from ostler.cli.selftest import PATIENCE
    from ostler.client.http import Hub

    token = enrolments.token(enrolment.name)
    if not token:
        return
    try:
        with Hub(enrolment.hub, token, patience=PATIENCE, trust=enrolments.trust(enrolment)) as hub:
            hub.leave()
    except NotAuthenticated:
        note("the hub did not know its token any more")
    except OstlerError as error:
        note(f"its token could not be given back ({error}); on the hub: ostler token list, ostler token revoke ID")


def _happens(what: Callable[[], bool]) -> bool:
    """Within a minute; a hub that does not answer meanwhile may be on its way."""
    give_up_at = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up_at:
        try:
            if what():
                return True
        except OstlerError:
            pass
        time.sleep(LOOK_S)
    return False
