"""`ostler top`: the fleet as it is now, for as long as somebody watches."""

import sys
from typing import Annotated

import typer

from ostler.cli import exits
from ostler.cli.options import Access
from ostler.cli.render.terminal import is_terminal
from ostler.cli.session import connect
from ostler.domain.errors import BadInput

NEEDED = "ostler top needs the library textual; install it into Ostler's environment: pip install textual"


def top(
    access: Access,
    filter: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Begin with the jobs and machines that have this in a word.")
    ] = "",
) -> int:
    """Watch machines, jobs and models as they change.

    With keys to look into logs, cancel, requeue, drain and filter: `?` shows them. When the hub was away it comes back
    by itself.
    """
    try:
        import textual  # noqa: F401
    except ImportError:
        raise BadInput(NEEDED) from None
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise BadInput("ostler top needs a terminal; `ostler status` prints the same, once")
    from ostler.cli.live.app import Top
    from ostler.client.transport import Patience

    with connect(access, Patience(tries=1, outage_s=0.0)) as hub:
        hub.status()  # what is wrong from the start is said in a sentence, not on a screen
        app = Top(hub, filter)
        app.run()
    return app.return_code or exits.DONE
