"""Bridges: somebody else's cluster as workers of the fleet."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ostler import config, logformat
from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.programs import Leashed, LogFormat, leash, read_labels
from ostler.cli.session import warn_of_argv
from ostler.domain.errors import OstlerError

Document = dict[str, Any]
Check = Annotated[bool, typer.Option("--check", help="Print what would be offered; start nothing.")]


@dataclass(frozen=True)
class Crossing:
    """What every bridge is told."""

    name: Annotated[
        str | None,
        typer.Option("--name", metavar="N", help="Goes before each node's name; the partition's, or ray."),
    ] = None
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="A folder that the nodes share; the state folder if not given."),
    ] = None
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="K=V", help="A label that jobs may ask for. Repeatable.")
    ] = None
    backend: Annotated[
        str, typer.Option("--backend", metavar="B", help="What drives the GPUs: nvidia, rocm or vulkan.")
    ] = "nvidia"
    vram_gb: Annotated[
        float, typer.Option("--vram-gb", metavar="N", min=0, help="Memory of each GPU, for jobs that ask for some.")
    ] = 0.0
    wait_in_line: Annotated[
        bool,
        typer.Option("--wait-in-line", help="Offer what others hold, too: tasks wait for it in the cluster's queue."),
    ] = False
    patience: Annotated[
        float,
        typer.Option("--patience", metavar="S", min=1, help="Take back what the cluster has not begun after this."),
    ] = 300.0
    look_seconds: Annotated[
        float,
        typer.Option("--look-seconds", metavar="S", min=0.05, help="Ask the cluster how jobs are this often, at most."),
    ] = 1.0
    drain_seconds: Annotated[
        float,
        typer.Option("--drain-seconds", metavar="S", min=0, help="When told to stop: how long tasks may go on."),
    ] = 600.0
    leave_running: Annotated[
        bool,
        typer.Option("--leave-running", help="When told to stop: leave at once; the next start takes all jobs back."),
    ] = False


def slurm(
    access: Access,
    crossing: Crossing,
    partition: Annotated[str, typer.Option("--partition", "-p", metavar="P", help="The partition to offer.")],
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="LIST", help="Of it, these nodes alone: gpu[01-04],gpu07.")
    ] = "",
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", metavar="OPTION", help="An option for every sbatch, like --account=lab. Repeatable."),
    ] = None,
    check: Check = False,
    json: Json = False,
    log_format: LogFormat = "",
    stop_on_eof: Leashed = False,
) -> int:
    """Offer the nodes of a Slurm partition to the fleet, as workers, and run tasks there as Slurm's jobs."""
    from ostler.bridge.slurm import Slurm

    def made(folder: Path, bridge: str) -> Slurm:
        return Slurm(partition, bridge=bridge, folder=folder, nodes=nodes, options=sbatch or ())

    return _start(access, crossing, made, partition, Run(check, json, log_format, stop_on_eof))


def ray(
    access: Access,
    crossing: Crossing,
    address: Annotated[
        str, typer.Option("--address", metavar="URL", help="The head's dashboard.")
    ] = "http://127.0.0.1:8265",
    ray_token: Annotated[
        str,
        typer.Option("--ray-token", metavar="T|@FILE", envvar="RAY_AUTH_TOKEN", help="Ray's own token, if it has one."),
    ] = "",
    ray_python: Annotated[
        str, typer.Option("--ray-python", metavar="FILE", help="Ray's own Python, as it is found on its nodes.")
    ] = "python",
    check: Check = False,
    json: Json = False,
    log_format: LogFormat = "",
    stop_on_eof: Leashed = False,
) -> int:
    """Offer the nodes of a Ray cluster to the fleet, as workers: jobs are Ray's jobs, function calls its tasks."""
    from ostler.bridge.ray import Ray

    token = Path(ray_token[1:]).read_text().strip() if ray_token.startswith("@") else ray_token

    def made(folder: Path, bridge: str) -> Ray:
        return Ray(address, bridge=bridge, token=token, folder=folder, python=ray_python)

    return _start(access, crossing, made, "ray", Run(check, json, log_format, stop_on_eof))


@dataclass(frozen=True)
class Run:
    check: bool
    json: bool
    log_format: str
    stop_on_eof: bool


def _start(access: Access, crossing: Crossing, made: Callable[[Path, str], Any], name: str, wanted: Run) -> int:
    from ostler.bridge.offering import Terms

    terms = Terms(
        backend=crossing.backend,
        vram_gb=crossing.vram_gb,
        labels=read_labels(crossing.label or []),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        in_line=crossing.wait_in_line,
    )
    state = config.state_dir(access.state_dir)
    folder = crossing.folder or state
    if wanted.check:
        return _check(_nodes(made(folder, "check")), crossing.wait_in_line, wanted.json)
    warn_of_argv(access.token)
    if wanted.stop_on_eof:
        leash()
    from ostler.worker.bridging import BridgeOptions, run
    from ostler.worker.main import WorkerOptions

    worker = WorkerOptions(
        hub=config.hub_url(access.hub, state),
        token=config.read_token(access.token, state, "join"),
        token_file=config.token_file(access.token, state, "join"),
        trust=config.trust(access.ca, state),
        name=crossing.name or name,
        state_dir=state,
        drain_seconds=crossing.drain_seconds,
        log_format=logformat.chosen(wanted.log_format),
    )
    options = BridgeOptions(
        worker=worker,
        system=made,
        folder=folder,
        terms=terms,
        patience_s=crossing.patience,
        leave_running=crossing.leave_running,
        look_s=crossing.look_seconds,
    )
    return run(options)


def _nodes(system: Any) -> list[Document]:
    """What a batch system has now."""
    import asyncio

    import msgspec

    from ostler.bridge.base import Unanswered

    async def ask() -> Any:
        await system.open()
        return await system.nodes()

    try:
        found: list[Document] = msgspec.to_builtins(asyncio.run(ask()))
    except Unanswered as error:
        raise OstlerError(f"{system.name} does not answer: {error}") from None
    return found


def _check(nodes: list[Document], in_line: bool, as_json: bool) -> int:
    if as_json:
        from ostler.cli.render.terminal import show_json

        show_json({"nodes": nodes})
    else:
        from ostler.cli.render.bridge import node_table
        from ostler.cli.render.terminal import show

        show(node_table(nodes, in_line=in_line))
    return exits.DONE if any(not node["closed"] for node in nodes) else exits.FAILED
