"""python -m ostler.gateway.relay --listen HOST:PORT --control FD [--spool FOLDER] [--tls-cert FILE --tls-key FILE]"""

import argparse
import asyncio
import contextlib
import resource
import socket
import sys
from pathlib import Path

import uvloop

from ostler.domain.errors import BadInput
from ostler.gateway.relay.process import run
from ostler.tls import Identity


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ostler.gateway.relay", description="The gateway's data plane.")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where callers come in; port 0: any")
    parser.add_argument(
        "--control", required=True, type=int, metavar="FD", help="the socket whose other end the hub has"
    )
    parser.add_argument("--spool", type=Path, default=None, help="where large bodies are kept while they wait")
    parser.add_argument("--tls-cert", type=Path, default=None, help="what it shows of itself")
    parser.add_argument("--tls-key", type=Path, default=None, help="the key to that")
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    _allow_many_files()
    if options.spool is not None:
        try:
            options.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            print(f"relay: {options.spool} cannot be made: {error.strerror or error}", file=sys.stderr)
            return 1
    control = socket.socket(fileno=options.control)
    try:
        identity = Identity(options.tls_cert, options.tls_key) if options.tls_cert is not None else None
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(host.strip("[]"), int(port), control, options.spool, identity))
    except BadInput as error:
        print(f"relay: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        told = (
            f"relay: {options.listen} cannot be listened on: {error.strerror or error}; --gateway-port N takes another"
        )
        print(told, file=sys.stderr)
        return 1
    return 0


def _allow_many_files() -> None:
    """Each caller and each instance's connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
