"""The audit: who did what to which object, and whether its rows are as they were written."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.paging import newest
from ostler.cli.render.terminal import note, show, show_json
from ostler.cli.session import connect
from ostler.domain.audit import AuditRecord, Link, Verifier, parse_link
from ostler.domain.errors import BadInput
from ostler.domain.quantities import parse_duration

if TYPE_CHECKING:
    from ostler.client.http import Hub

Document = dict[str, Any]
PAGE = 1000


def audit(
    ctx: typer.Context,
    access: Access,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="No older than this, like 2h.")] = None,
    actor: Annotated[str, typer.Option("--actor", metavar="WHO", help="What a user, or a token's id, did.")] = "",
    about: Annotated[str, typer.Option("--object", metavar="WHAT", help="What was done to this, like job/ID.")] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many of the newest rows.")] = 100,
    json: Json = False,
) -> int:
    """Print who did what to which object, and who was refused: the newest last."""
    if ctx.invoked_subcommand is not None:
        return exits.DONE
    filters: Document = {"actor": actor, "object": about}
    if since is not None:
        filters["since"] = time.time() - parse_duration(since, "--since")
    with connect(access) as hub:
        found = newest(hub.audit, "rows", filters, limit)
    if json:
        show_json(found)
        return exits.DONE
    from ostler.cli.render.audit import audit_table

    show(audit_table(found["rows"][::-1]))
    return exits.DONE


def verify(
    access: Access,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="ROW:HASH", help="A last row that you noted; the hub says it in its log, too."),
    ] = None,
    json: Json = False,
) -> int:
    """Compute every row's hash anew, and compare. Exit code 1: a row was changed, or is gone."""
    noted = None if head is None else _link(head)
    with connect(access) as hub:
        verifier, last = _verified(hub, noted)
    fault = verifier.first_fault
    if json:
        row, what = fault or (None, None)
        told = {"ok": fault is None, "rows": verifier.rows, "head": last and str(last), "row": row, "what": what}
        show_json(told)
    elif fault is None:
        print(f"{verifier.rows} rows are as they were written; the last is {last or 'none'}")
    else:
        print(f"row {fault[0]} {fault[1]}")
        note(f"{verifier.rows} rows were looked at, {len(verifier.faults)} do not hold")
    return exits.DONE if fault is None else exits.FAILED


def _verified(hub: "Hub", noted: Link | None) -> tuple[Verifier, Link | None]:
    import msgspec

    page = hub.audit(limit=PAGE)
    verifier = Verifier(*(parse_link(page[end]) if page[end] else None for end in ("head", "anchor")))
    last: Link | None = None
    while True:
        for row in msgspec.convert(page["rows"], list[AuditRecord]):
            verifier.add(row)
            last = last or Link(row.seq, row.hash)
            if noted is not None and row.seq == noted.seq and row.hash != noted.hash:
                verifier.faults.append((row.seq, "has another hash than the one that you noted"))
        if page["next"] is None:
            break
        page = hub.audit(limit=PAGE, cursor=page["next"])
    verifier.end()
    if noted is not None and (last is None or last.seq < noted.seq):
        verifier.faults.append((noted.seq, "was noted as written, and is gone"))
    return verifier, last


def _link(text: str) -> Link:
    found = parse_link(text)
    if found is None:
        raise BadInput(f"--head: {text!r} is not ROW:HASH as the hub's log has it", [("--head", "not ROW:HASH")])
    return found
