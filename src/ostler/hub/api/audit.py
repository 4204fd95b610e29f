"""The audit over HTTP: rows, newest first, and where the chain begins and ends."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.domain.audit import ANCHOR, HEAD, SCOPE, AuditRecord, Link, kept_link
from ostler.domain.errors import BadInput
from ostler.hub.api.routes import json_response, number_in_query
from ostler.hub.loop import Loop
from ostler.ledger.base import Ledger

MOST_ROWS = 1000


class AuditApi:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    async def listing(self, request: Request) -> Response:
        """What has been refused until now is told as well: whoever looks does not wait for the minute's end."""
        limit = number_in_query(request, "limit", 100, 1, MOST_ROWS)
        before = number_in_query(request, "cursor", 2**62, 0, 2**62)
        query = request.query_params
        actor, about, since = query.get("actor", ""), query.get("object", ""), _time(query.get("since", "0"))
        self._loop.audit.settle()
        await self._loop.turn()

        def read(ledger: Ledger) -> tuple[dict[str, bytes], list[AuditRecord]]:
            # The ends before the rows: a row that is written meanwhile is one more, and not one too few.
            kept = ledger.kept(SCOPE)
            return kept, ledger.audit(before=before, since=since, actor=actor, object=about, limit=limit + 1)

        kept, found = await self._loop.read(read)
        page = found[:limit]
        return json_response(
            {
                "rows": [_document(row) for row in page],
                "next": str(page[-1].seq) if len(found) > limit else None,
                "head": _end(kept_link(kept, HEAD)),
                "anchor": _end(kept_link(kept, ANCHOR)),
            }
        )


def _document(row: AuditRecord) -> dict[str, Any]:
    """As it was written, so that whoever reads it can compute its hash."""
    document: dict[str, Any] = msgspec.to_builtins(row)
    return document


def _end(link: Link | None) -> str | None:
    return None if link is None else str(link)


def _time(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e12:
        raise BadInput(f"since: {text!r} is no time in seconds since 1970", [("since", "not a time")])
    return found
