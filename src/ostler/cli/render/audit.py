"""The audit on a terminal."""

from typing import Any

from rich.console import RenderableType

from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import plain, quiet
from ostler.cli.render.words import since, stamp

Document = dict[str, Any]


def audit_table(rows: list[Document]) -> RenderableType:
    if not rows:
        return quiet("nothing of this kind is in the audit")
    grid = Columns(
        "row", "at", "who", "from", "action", "object", "outcome", "detail",
        cut={"who": 12, "object": 16, "detail": 12},
        drop=("from", "detail"),
        right=["row"],
    )  # fmt: skip
    for row in rows:
        grid.add(
            str(row["seq"]),
            stamp(row["at"]),
            plain(_who(row)),
            plain(row["source"]),
            plain(row["action"]),
            plain(row["object"]),
            plain(row["outcome"]),
            plain(row["detail"]),
        )
    return grid


def _who(row: Document) -> str:
    """The user, and by which token."""
    if not row["actor"]:
        return row["user"] or "nobody"
    return f"{row['user']} ({row['actor']})"


def secret_table(secrets: list[Document], now: float | None = None) -> RenderableType:
    if not secrets:
        return quiet("no secrets; make one with: ostler secret set NAME")
    grid = Columns("name", "of", "set by", "age", cut={"name": 12, "of": 10})
    for one in secrets:
        grid.add(
            plain(one["name"]),
            plain("everybody" if one["fleet"] else one["user"]),
            plain(one["by"]),
            since(one["at"], now),
        )
    return grid
