"""The manifest: make the queue follow it, or see beforehand what that would change."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.render.terminal import is_terminal, note, show, show_json
from ostler.cli.render.words import clean
from ostler.cli.session import connect
from ostler.domain.errors import BadInput

if TYPE_CHECKING:
    from ostler.cli.drift import Findings
    from ostler.client.http import Hub

Document = dict[str, Any]
ManifestFile = Annotated[Path, typer.Argument(metavar="FILE", help="The manifest, in TOML.", show_default=False)]
Replace = Annotated[bool, typer.Option("--replace", help="Give jobs that exist the names that the manifest has.")]


def apply(
    file: ManifestFile,
    access: Access,
    check: Annotated[
        bool,
        typer.Option("--check", help="First ask each program on the fleet whether it takes these hyper keys."),
    ] = False,
    replace: Replace = False,
    json: Json = False,
) -> int:
    """Make the queue follow a manifest.

    A job that is there keeps its state, and one that the manifest no longer has stays until it is cancelled. A manifest
    with an error changes nothing. One that would give a job another name is refused without --replace.
    """
    text = _text_of(file)
    findings = None
    try:
        with connect(access) as hub:
            if check:
                findings = _checked(hub, text, file)
                if findings.drift:
                    return _told_drift(findings, file, json)
            answer = hub.apply_manifest(text, file=file.name, replace=replace)
    except BadInput as error:
        return _told_errors(error)
    return _told_changes({**answer, "check": findings.document()} if findings else answer, json)


def plan(file: ManifestFile, access: Access, json: Json = False) -> int:
    """Show what an apply would change, from which value to which, and where each job could run."""
    text = _text_of(file)
    try:
        with connect(access) as hub:
            answer = hub.apply_manifest(text, file=file.name, plan=True)
    except BadInput as error:
        return _told_errors(error)
    if json:
        show_json(answer)
        return exits.DONE
    from ostler.cli.render.manifest import plan_table

    show(plan_table(answer))
    return exits.DONE


def reload(access: Access, replace: Replace = False, json: Json = False) -> int:
    """Have the hub read its manifest file again.

    It is the one that `ostler hub --manifest FILE` was started with.
    """
    try:
        with connect(access) as hub:
            answer = hub.reload_manifest(replace=replace)
    except BadInput as error:
        return _told_errors(error)
    return _told_changes(answer, json)


def _text_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}", [("file", "cannot be read")]) from None


def _told_errors(error: BadInput) -> int:
    """Everything that is wrong, a line each, in the form that editors jump to."""
    if not error.errors:
        raise error
    for line in str(error).splitlines():
        print(clean(line), file=sys.stderr)
    return exits.USAGE


def _checked(hub: "Hub", text: bytes, file: Path) -> "Findings":
    from ostler import manifest
    from ostler.cli import drift

    found = manifest.read(text, file.name)
    if is_terminal(sys.stderr):
        note("asking the programs for their options ...")
    findings = drift.check(hub, found.specs, found.lines)
    for program, why in findings.unchecked.items():
        note(f"note: `{program}` could not be checked: {clean(why)}")
    return findings


def _told_drift(findings: "Findings", file: Path, as_json: bool) -> int:
    for one in findings.drift:
        print(clean(one.sentence(file.name)), file=sys.stderr)
    note("nothing was applied")
    if as_json:
        show_json({"check": findings.document()})
    return exits.FAILED


def _told_changes(answer: Document, as_json: bool) -> int:
    if as_json:
        show_json(answer)
        return exits.DONE
    from ostler.cli.render.manifest import change_table

    show(change_table(answer))
    return exits.DONE
