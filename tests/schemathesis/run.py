"""`make schemathesis`: a hub of its own, called by a fuzzer that has read its description, once for every role.

No answer may be a fault of the hub's, none may be missing, and each must be as described.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROLES = ("viewer", "user", "operator", "worker", "gateway")
SECONDS_EACH = 20
START_WITHIN_S = 60.0
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"),
    *("ignored_auth", "unsupported_method", "use_after_free"),
)
LEFT_OUT = ("/v1/events", "/v1/leave")
"""One never ends; the other ends the token that asks."""
WAITED_ON = ("follow", "wait")


def call(url: str, token: str, path: str, body: object = None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def answered_at_once(description: dict[str, Any]) -> dict[str, Any]:
    """The job here never runs: whoever follows its log or waits for it waits longer than the fuzzer does."""
    for operations in description["paths"].values():
        for operation in operations.values():
            given = operation.get("parameters", []) if isinstance(operation, dict) else []
            given[:] = [one for one in given if one.get("name") not in WAITED_ON]
    return description


def started(state: Path) -> subprocess.Popen[bytes]:
    bin_folder = Path(sys.executable).parent
    command = [bin_folder / "ostler", "hub", "--state-dir", state, "--port", "0", "--gateway-port", "0"]
    hub = subprocess.Popen([str(part) for part in command], stderr=(state / "hub.log").open("wb"))
    until = time.monotonic() + START_WITHIN_S
    while not (state / "hub.url").exists():
        if hub.poll() is not None or time.monotonic() > until:
            sys.exit("the hub did not start:\n" + (state / "hub.log").read_text())
        time.sleep(0.1)
    return hub


def fuzz(tool: str, description: Path, url: str, token: str, seconds: int) -> int:
    command = [tool, "run", str(description), "--url", url, "--phases", "coverage,fuzzing", "--max-time", str(seconds)]
    command += ["--checks", ",".join(CHECKS), "--request-timeout", "15", "--max-examples", "5", "--no-shrink"]
    command += ["--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off"]
    command += [part for path in LEFT_OUT for part in ("--exclude-path", path)]
    return subprocess.run([*command, "--header", f"Authorization: Bearer {token}"], timeout=seconds * 3 + 60).returncode


def main(tool: str, seconds: int) -> int:
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        hub = started(state)
        try:
            url, admin = (state / "hub.url").read_text().strip(), (state / "admin.token").read_text().strip()
            call(url, admin, "/v1/jobs", {"command": ["true"], "id": "known", "user_id": "somebody"})
            description = state / "openapi.json"
            description.write_text(json.dumps(answered_at_once(call(url, admin, "/openapi.json"))))
            for role in ROLES:
                print(f"== as {role}", flush=True)
                token = call(url, admin, "/v1/tokens", {"role": role, "user": "somebody"})["token"]
                failed += [role] if fuzz(tool, description, url, token, seconds) else []
                if hub.poll() is not None:
                    sys.exit("the hub has ended:\n" + (state / "hub.log").read_text())
        finally:
            hub.terminate()
            hub.wait(60)
    print(f"schemathesis: failed as {', '.join(failed)}" if failed else "schemathesis: nothing found, as any role")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(os.environ.get("SECONDS_EACH", SECONDS_EACH))))
