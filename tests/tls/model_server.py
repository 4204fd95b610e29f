"""python model_server.py PORT: says the same to whatever it is asked, as a model would."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

SAID = json.dumps({"choices": [{"message": {"content": "over TLS"}}]}).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(SAID)))
        self.end_headers()
        self.wfile.write(SAID)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
