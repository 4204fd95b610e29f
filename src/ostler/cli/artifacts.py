"""Artifacts: what jobs left behind, listed, fetched, looked after."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.paging import newest
from ostler.cli.render.terminal import is_terminal, note, show_json
from ostler.cli.render.terminal import show as show_parts
from ostler.cli.session import connect
from ostler.domain.errors import BadInput
from ostler.domain.quantities import parse_duration

if TYPE_CHECKING:
    from ostler.client.http import Hub

Document = dict[str, Any]
PAGE = 30

ArtifactId = Annotated[
    str,
    typer.Argument(metavar="ID", help="An artifact's id, the beginning of one, or its job's id or name."),
]


def list_artifacts(
    access: Access,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only those of this job.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Only those of this model.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="The newest so many.")] = PAGE,
    json: Json = False,
) -> int:
    """List artifacts, the newest first."""
    with connect(access) as hub:
        found = newest(hub.artifacts, "artifacts", {"job": job, "model": model}, limit)
    if json:
        show_json(found)
        return exits.DONE
    from ostler.cli.render.artifacts import artifact_table

    show_parts(artifact_table(found["artifacts"]))
    if found["next"] is not None:
        note(f"these are the newest {limit}; --limit N shows more")
    return exits.DONE


def show(artifact: ArtifactId, access: Access, json: Json = False) -> int:
    """Show an artifact: its size, its metrics, and the jobs that made it."""
    from ostler.client.artifacts import find

    with connect(access) as hub:
        document = find(hub, artifact)
    if json:
        show_json(document)
        return exits.DONE
    from ostler.cli.render.artifacts import artifact_screen

    show_parts(artifact_screen(document))
    return exits.DONE


def get(
    artifact: ArtifactId,
    access: Access,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR|FILE", help="Where to: into a folder that is there, or under this name."),
    ] = None,
    extract: Annotated[bool, typer.Option("--extract", "-x", help="Unpack it into a folder.")] = False,
) -> int:
    """Fetch an artifact and print where it is. A download that was cut goes on when it is asked for again."""
    from ostler.client import artifacts

    with connect(access) as hub:
        document = artifacts.find(hub, artifact)
        name = artifacts.folder_name(document) if extract else artifacts.file_name(document)
        target = Path(name) if to is None else to / name if to.is_dir() else to
        with _bar(document) as bar:
            if extract:
                artifacts.extract(hub, document, target, bar)
            else:
                artifacts.fetch(hub, document, target, bar)
    print(target)
    return exits.DONE


def _bar(document: Document) -> Any:
    if not is_terminal(sys.stderr):
        return nullcontext()
    from ostler.cli.render.progress import UploadBar

    return UploadBar(f"fetching {document['id'][:12]}")


def _read_bar(size: int) -> Any:
    """Of what the hub reads again: for many of them that takes its time."""
    if not is_terminal(sys.stderr):
        return nullcontext()
    from ostler.cli.render.progress import UploadBar

    return UploadBar("reading again", size)


def _verified(hub: "Hub", document: Document, bar: Any) -> Document:
    found = hub.verify_artifact(document["id"])
    if bar is not None:
        bar.more(document["size"])
    return found


def verify(
    access: Access,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Artifacts, by their ids or their jobs' ids or names."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that there are.")] = False,
    json: Json = False,
) -> int:
    """Have the hub read artifacts again: exit 1 if one is damaged."""
    if bool(ids) == every:
        raise BadInput("name the artifacts to verify, or give --all", [("ID", "nothing to verify")])
    from ostler.client.artifacts import find

    with connect(access) as hub:
        chosen = hub.all_artifacts() if every else (find(hub, text) for text in ids or [])
        known = {document["id"]: document for document in chosen}
        with _read_bar(sum(document["size"] for document in known.values())) as bar:
            found = [{**document, **_verified(hub, document, bar)} for document in known.values()]
    bad = [document for document in found if not document["ok"]]
    if json:
        show_json({"artifacts": [{key: one[key] for key in ("id", "ok", "here", "size")} for one in found]})
    else:
        from ostler.cli.render.artifacts import verified_table

        show_parts(verified_table(found))
    return exits.FAILED if bad else exits.DONE


def collect(
    access: Access,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Only what is older: 12h, 30d, …; a day if not given, a minute at least.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    json: Json = False,
) -> int:
    """Remove artifacts that no succeeded job points to."""
    older_than_s = None if older_than is None else parse_duration(older_than, "--older-than")
    with connect(access) as hub:
        done = hub.collect_artifacts(older_than_s=older_than_s, dry_run=dry_run)
    if json:
        show_json(done)
        return exits.DONE
    from ostler.cli.render.artifacts import removed_lines

    show_parts(*removed_lines(done))
    return exits.DONE
