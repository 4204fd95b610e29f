"""A service: kept up, asked after its health, and reached through the hub wherever it runs.

    ostler submit --snapshot examples --service --name clock -- python service.py {port}
    curl -H "Authorization: Bearer $(cat STATE/admin.token)" http://127.0.0.1:7600/services/clock/time
    ostler cancel clock

STATE is the folder that `ostler up` prints; on another machine, use a token of your own.

`{port}` becomes a free port of the machine that it runs on; nothing but its worker needs to reach that.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Clock(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"path": self.path, "time": time.time()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Clock).serve_forever()
