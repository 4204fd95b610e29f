"""What an error means, for anybody who follows the `type` of a problem document: as a page, or as plain text."""

import re
from html import escape

from starlette.requests import Request
from starlette.responses import Response

from ostler.domain import advice
from ostler.domain.errors import NotFound
from ostler.hub.web.pages import HEADERS

LASTS = "public, max-age=3600"
_CODE = re.compile(r"`([^`]+)`")


async def explain(request: Request) -> Response:
    name = str(request.path_params["name"])
    one = advice.ALL.get(name)
    if one is None:
        raise NotFound(f"there is no error called {name[:100]!r}; known are {', '.join(advice.ALL)}")
    headers = {**HEADERS, "Cache-Control": LASTS, "Vary": "Accept"}
    if "text/html" in request.headers.get("accept", ""):
        return Response(_page(one), headers=headers, media_type="text/html")
    return Response(advice.text(one), headers=headers, media_type="text/plain")


def _page(one: advice.Advice) -> str:
    sign = "" if one.kind == advice.REASON else f": {escape(one.sign)}"
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="color-scheme" content="light dark">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{escape(one.name)} - Ostler</title>\n'
        f"<h1>{escape(one.name)}</h1>\n<p>{escape(one.kind)}{sign}\n<p>{_marked(one.happened)}\n"
        f"<h2>What to do</h2>\n<p>{_marked(one.act)}\n</html>\n"
    )


def _marked(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))
