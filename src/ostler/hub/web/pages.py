"""The dashboard's files, for anybody: they hold nothing, and ask for what they show with the session's cookie."""

import mimetypes
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

import ostler
from ostler.domain.errors import NotFound

FOLDER = Path(ostler.__file__).parent / "dashboard" / "static"
INDEX = "index.html"
ASSETS = "assets/"
LICENCES = "assets/licences.txt"
"""Has no hash of its content in its name, as the other assets have: a cached copy would outlive an upgrade."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; img-src 'self' data:; object-src 'none'; script-src 'self'; "
    "style-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ABSENT = """<!doctype html>
<html lang="en">
<title>Ostler</title>
<h1>Ostler</h1>
<p>The hub is up; its dashboard is not built here. With Node 18 or newer, <code>make dashboard</code> builds it; then
start the hub again.
<p>The command line has all there is: <code>ostler status</code>, <code>ostler jobs</code>, <code>ostler top</code>.
</html>
"""


class Pages:
    def __init__(self, folder: Path = FOLDER) -> None:
        # The files are counted once: what was not there when the hub began is no path that it could be led to.
        self._files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}

    async def index(self, request: Request) -> Response:
        headers = {**HEADERS, "Cache-Control": "no-cache"}
        if INDEX in self._files:
            return FileResponse(self._files[INDEX], headers=headers, media_type="text/html")
        return Response(ABSENT, headers=headers, media_type="text/html")

    async def asset(self, request: Request) -> Response:
        name = ASSETS + str(request.path_params["path"])
        if name not in self._files:
            raise NotFound(f"there is no file {name[:200]!r}")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        cached = "no-cache" if name == LICENCES else "public, max-age=31536000, immutable"
        headers = {**HEADERS, "Cache-Control": cached}
        return FileResponse(self._files[name], headers=headers, media_type=kind)
