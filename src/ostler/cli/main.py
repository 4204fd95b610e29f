"""The `ostler` command: what commands there are, and what becomes of an error."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ostler import __version__
from ostler.cli import (
    artifacts,
    audit,
    bridge,
    enrol,
    execute,
    exits,
    explain,
    follow,
    foresee,
    jobs,
    keeping,
    machines,
    manifest,
    models,
    programs,
    schema,
    secrets,
    settings,
    simulate,
    sweeps,
    tokens,
    top,
)
from ostler.cli.help import CONTEXT, Command, Group
from ostler.cli.options import Access, spread
from ostler.cli.render.terminal import prepare_streams
from ostler.domain.errors import OstlerError

app = typer.Typer(cls=Group, context_settings=CONTEXT, rich_markup_mode=None, no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ostler {__version__}")
        raise typer.Exit


@app.callback()
@spread
def ostler(
    ctx: typer.Context,
    access: Access,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """One control plane for a mixed fleet of machines that do machine learning."""
    ctx.obj = access


def _group(name: str, told: str, panel: str, **more: Any) -> typer.Typer:
    group = typer.Typer(cls=Group, context_settings=CONTEXT, rich_markup_mode=None, **more)
    app.add_typer(group, name=name, help=told, rich_help_panel=panel)
    return group


def _register() -> None:
    start, work, look, fleet = "Start", "Run work", "Look at it", "The fleet"
    in_order = CONTEXT | {"allow_interspersed_args": False}
    app.command("up", cls=Command, rich_help_panel=start)(spread(programs.up))
    app.command("hub", cls=Command, rich_help_panel=start)(spread(programs.hub))
    worker = _group(
        "worker",
        "Run a worker for this machine, or look after one.",
        start,
        invoke_without_command=True,
        callback=spread(programs.worker),
    )
    _register_bridges(start)
    # The first word that is no option begins the job's own command line, with or without `--` before it.
    app.command("submit", cls=Command, rich_help_panel=work, context_settings=in_order)(spread(jobs.submit))
    app.command("run", cls=Command, rich_help_panel=work, context_settings=in_order)(spread(jobs.run))
    app.command("wait", cls=Command, rich_help_panel=work)(spread(follow.wait))
    app.command("exec", cls=Command, rich_help_panel=work, context_settings=in_order)(spread(execute.execute))
    app.command("cancel", cls=Command, rich_help_panel=work)(spread(jobs.cancel))
    app.command("requeue", cls=Command, rich_help_panel=work)(spread(jobs.requeue))
    below_zero = {"ignore_unknown_options": True}
    app.command("priority", cls=Command, rich_help_panel=work, context_settings=below_zero)(spread(jobs.priority))
    app.command("apply", cls=Command, rich_help_panel=work)(spread(manifest.apply))
    app.command("plan", cls=Command, rich_help_panel=work)(spread(manifest.plan))
    app.command("reload", cls=Command, rich_help_panel=work)(spread(manifest.reload))
    app.command("jobs", cls=Command, rich_help_panel=look)(spread(jobs.jobs))
    app.command("list", cls=Command, rich_help_panel=look, help="The same as `ostler jobs`.")(spread(jobs.jobs))
    app.command("show", cls=Command, rich_help_panel=look)(spread(jobs.show))
    app.command("why", cls=Command, rich_help_panel=look)(spread(foresee.why))
    app.command("whatif", cls=Command, rich_help_panel=look, context_settings=in_order)(spread(foresee.whatif))
    app.command("explain", cls=Command, rich_help_panel=look)(spread(explain.explain))
    app.command("simulate", cls=Command, rich_help_panel=look)(spread(simulate.simulate))
    app.command("logs", cls=Command, rich_help_panel=look)(spread(follow.logs))
    app.command("status", cls=Command, rich_help_panel=look)(spread(machines.status))
    app.command("top", cls=Command, rich_help_panel=look)(spread(top.top))
    sweep = _group(
        "sweeps",
        "List the sweeps of the manifest, or look after one.",
        look,
        invoke_without_command=True,
        callback=spread(sweeps.sweeps),
    )
    sweep.command("show", cls=Command)(spread(sweeps.show))
    sweep.command("wait", cls=Command)(spread(sweeps.wait))
    sweep.command("cancel", cls=Command)(spread(sweeps.cancel))
    sweep.command("requeue", cls=Command)(spread(sweeps.requeue))
    model = _group(
        "models",
        "List the gateway's models, or look after one.",
        look,
        invoke_without_command=True,
        callback=spread(models.models),
    )
    for name in ("load", "unload", "pin", "unpin", "logs"):
        model.command(name, cls=Command)(spread(getattr(models, name)))
    model.command("reload", cls=Command)(spread(models.reload))
    model.command("import", cls=Command)(spread(models.import_file))
    artifact = _group("artifacts", "List, fetch and look after what jobs left behind.", look, no_args_is_help=True)
    artifact.command("list", cls=Command)(spread(artifacts.list_artifacts))
    artifact.command("show", cls=Command)(spread(artifacts.show))
    artifact.command("get", cls=Command)(spread(artifacts.get))
    artifact.command("verify", cls=Command)(spread(artifacts.verify))
    artifact.command("gc", cls=Command)(spread(artifacts.collect))
    _register_workers(worker, fleet)
    app.command("join", cls=Command, rich_help_panel=fleet)(spread(enrol.join))
    app.command("leave", cls=Command, rich_help_panel=fleet)(spread(enrol.leave))
    token = _group("token", "Make, list, replace and revoke tokens.", fleet, no_args_is_help=True)
    token.command("create", cls=Command)(spread(tokens.create))
    token.command("list", cls=Command)(spread(tokens.list_tokens))
    token.command("revoke", cls=Command)(spread(tokens.revoke))
    token.command("rotate", cls=Command)(spread(tokens.rotate))
    _register_guarding(fleet)
    app.command("backup", cls=Command, rich_help_panel=fleet)(spread(keeping.backup))
    app.command("restore", cls=Command, rich_help_panel=fleet)(spread(keeping.restore))
    app.command("doctor", cls=Command, rich_help_panel=fleet)(spread(keeping.doctor))
    config = _group("config", "What is set, and where it came from.", fleet, no_args_is_help=True)
    config.command("show", cls=Command)(spread(settings.show))


def _register_workers(worker: typer.Typer, panel: str) -> None:
    app.command("workers", cls=Command, rich_help_panel=panel)(spread(machines.workers))
    worker.command("list", cls=Command, help="The same as `ostler workers`.")(spread(machines.workers))
    worker.command("show", cls=Command)(spread(machines.show))
    worker.command("drain", cls=Command)(spread(machines.drain))
    worker.command("resume", cls=Command)(spread(machines.resume))


def _register_bridges(panel: str) -> None:
    cluster = _group("bridge", "Offer somebody else's cluster to the fleet.", panel, no_args_is_help=True)
    cluster.command("slurm", cls=Command)(spread(bridge.slurm))
    cluster.command("ray", cls=Command)(spread(bridge.ray))


def _register_guarding(panel: str) -> None:
    secret = _group("secret", "Set, list and delete secrets that jobs are given.", panel, no_args_is_help=True)
    secret.command("set", cls=Command)(spread(secrets.set_secret))
    secret.command("list", cls=Command)(spread(secrets.list_secrets))
    secret.command("delete", cls=Command)(spread(secrets.delete))
    told = _group(
        "audit",
        "Who did what to which object, and whether that is all still there.",
        panel,
        invoke_without_command=True,
        callback=spread(audit.audit),
    )
    told.command("verify", cls=Command)(spread(audit.verify))
    app.command("schema", cls=Command, rich_help_panel=panel)(spread(schema.schema))


_register()


def run(arguments: Sequence[str]) -> int:
    """The exit code of this command line. Every error that a person can cause is one sentence on standard error."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="ostler", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else exits.DONE
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
        else:
            exits.complain(exits.usage_sentence(error))
        return error.exit_code
    except OstlerError as error:
        exits.complain(exits.sentence_of(error))
        return exits.code_of(error)
    except (KeyboardInterrupt, typer.Abort):
        return exits.INTERRUPTED
    except BrokenPipeError:
        return exits.DONE
    except OSError as error:
        exits.complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return exits.FAILED


def main() -> None:
    prepare_streams()
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        # The reader has left (`ostler jobs | head`): what the interpreter flushes when it ends must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
