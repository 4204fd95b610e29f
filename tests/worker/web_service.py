"""A service as users write them: HTTP on $OSTLER_PORT; files in its folder say how it feels.

    python web_service.py FOLDER [--port PORT]

`/live` and `/ready` answer 503 while a file `dead` or `busy` is there; `/echo` gives a body back, `/big/N` gives N
bytes, `/slow` begins an answer and never ends it. While a file `deaf` is there at the start it does not listen.
"""

import http.server
import os
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/live":
            self.answer(b"", 503 if (FOLDER / "dead").exists() else 200)
        elif self.path == "/ready":
            self.answer(b"", 503 if (FOLDER / "busy").exists() else 204)
        elif self.path.startswith("/big/"):
            self.answer(b"x" * int(self.path.removeprefix("/big/")))
        elif self.path == "/slow":
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"1")
            self.wfile.flush()
            time.sleep(600)
        else:
            self.answer(b"hello", 200 if self.path == "/" else 404)

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    while (FOLDER / "deaf").exists():
        time.sleep(0.01)
    port = int(sys.argv[3]) if sys.argv[2:3] == ["--port"] else int(os.environ["OSTLER_PORT"])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers).serve_forever()
