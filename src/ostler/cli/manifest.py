"""The manifest: make the queue follow it, or see beforehand what that would change."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.render.terminal import is_terminal, note, show, show_json
from ostler.cli.render.words import clean
from ostler.cli.session import connect
from ostler.domain import states
from ostler.domain.errors import BadInput

if TYPE_CHECKING:
    from ostler.cli.drift import Findings
    from ostler.client.http import Hub

Document = dict[str, Any]
ManifestFile = Annotated[Path, typer.Argument(metavar="FILE", help="The manifest, in TOML.", show_default=False)]
Replace = Annotated[bool, typer.Option("--replace", help="Give jobs that exist the names that the manifest has.")]


Check = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check",
        help="Ask programs on the fleet whether they take these hyper keys and values: for all jobs, or for none. "
        "Otherwise they are asked for the jobs that wait.",
        show_default=False,
    ),
]


def apply(
    file: ManifestFile,
    access: Access,
    check: Check = None,
    replace: Replace = False,
    json: Json = False,
) -> int:
    """Make the queue follow a manifest.

    A job that is there keeps its state, and one that the manifest no longer has stays until it is cancelled. A manifest
    with an error changes nothing. One that would give a job another name is refused without --replace, and one with
    hyper keys or values that a program does not take, without --no-check.
    """
    text = _text_of(file)
    findings = None
    try:
        with connect(access) as hub:
            if check is not False:
                planned = partial(hub.apply_manifest, text, file=file.name, plan=True)
                findings = _checked(hub, text, file.name, planned, bool(check), may_rename=replace)
                if findings.drift:
                    return _told_drift(findings, file.name, json)
            answer = hub.apply_manifest(text, file=file.name, replace=replace)
    except BadInput as error:
        return _told_errors(error)
    return _told_changes(answer, findings, json)


def plan(file: ManifestFile, access: Access, check: Check = None, json: Json = False) -> int:
    """Show what an apply would change, from which value to which, and where each job could run.

    Exits with 1 if an apply would be refused because a program does not take its hyper keys or values.
    """
    text = _text_of(file)
    try:
        with connect(access) as hub:
            answer = hub.apply_manifest(text, file=file.name, plan=True)
            findings = None
            if check is not False:
                findings = _checked(hub, text, file.name, lambda: answer, bool(check))
    except BadInput as error:
        return _told_errors(error)
    if json:
        show_json(_with_check(answer, findings))
    else:
        from ostler.cli.render.manifest import plan_table

        show(plan_table(answer))
    return _complain(findings, file.name) if findings and findings.drift else exits.DONE


def reload(access: Access, check: Check = None, replace: Replace = False, json: Json = False) -> int:
    """Have the hub read its manifest file again.

    It is the one that `ostler hub --manifest FILE` was started with. What `ostler apply` refuses is refused here too.
    """
    findings = None
    try:
        with connect(access) as hub:
            if check is not False:
                found = hub.reload_manifest(plan=True)
                if "file" not in found:
                    note("note: the hub is older than this command and has applied the manifest without a check")
                    return _told_changes(found, None, json)
                file = str(found["file"])
                findings = _checked(hub, found["text"].encode(), file, lambda: found, bool(check), may_rename=replace)
                if findings.drift:
                    return _told_drift(findings, file, json)
            answer = hub.reload_manifest(replace=replace)
    except BadInput as error:
        return _told_errors(error)
    return _told_changes(answer, findings, json)


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


def _checked(
    hub: "Hub", text: bytes, file: str, plan: Callable[[], Document], of_all: bool, *, may_rename: bool = True
) -> "Findings":
    """What the programs do not take, `of_all` jobs or of those that wait for a start, or would.

    `plan` asks the hub which these are, so that a manifest that the hub refuses runs nothing. Without `may_rename` the
    hub refuses one that would give a job another name.
    """
    from ostler import manifest
    from ostler.cli import drift
    from ostler.cli.handover import handed_over

    found = manifest.read(text, file)
    if not any(map(handed_over, found.specs)):
        return drift.Findings([], {})
    lines = plan()["jobs"]  # those of the manifest first, in its order
    if not may_rename and any("name" in line["differs"] for line in lines):
        return drift.Findings([], {})
    pairs = zip(found.specs, lines, strict=False)
    wanted = [spec for spec, line in pairs if of_all or line["state"] == states.PENDING]
    if wanted and is_terminal(sys.stderr):
        note("asking the programs for their options ...")
    findings = drift.check(hub, wanted, found.lines)
    for program, why in findings.unchecked.items():
        note(f"note: `{program}` could not be checked: {clean(why)}")
    return findings


def _told_drift(findings: "Findings", file: str, as_json: bool) -> int:
    code = _complain(findings, file)
    note("nothing was applied")
    if as_json:
        show_json({"check": findings.document()})
    return code


def _complain(findings: "Findings", file: str) -> int:
    for one in findings.drift:
        print(clean(one.sentence(file)), file=sys.stderr)
    return exits.FAILED


def _told_changes(answer: Document, findings: "Findings | None", as_json: bool) -> int:
    if as_json:
        show_json(_with_check(answer, findings))
        return exits.DONE
    from ostler.cli.render.manifest import change_table

    show(change_table(answer))
    return exits.DONE


def _with_check(answer: Document, findings: "Findings | None") -> Document:
    return answer if findings is None else {**answer, "check": findings.document()}
