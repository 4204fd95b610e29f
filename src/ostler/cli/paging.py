"""Lists come from the hub in pages; people ask for so many rows."""

from collections.abc import Callable
from typing import Any

Document = dict[str, Any]
MOST_PER_PAGE = 500


def newest(fetch: Callable[..., Document], key: str, filters: Document, limit: int) -> Document:
    """So many in the shape of one page, however many pages the hub makes of them, and however short those are."""
    found: list[Document] = []
    cursor = None
    while len(found) < limit:
        page = fetch(limit=min(limit - len(found), MOST_PER_PAGE), cursor=cursor, **filters)
        found += page[key]
        cursor = page.get("next")
        if cursor is None:
            break
    return {key: found, "next": cursor}
