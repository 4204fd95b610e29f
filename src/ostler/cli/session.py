"""One command's talk with the hub."""

from typing import TYPE_CHECKING

from ostler import config
from ostler.cli.options import Access
from ostler.cli.render.terminal import note
from ostler.domain.errors import NotAuthenticated

if TYPE_CHECKING:
    from ostler.client.http import Hub
    from ostler.client.transport import Patience


def warn_of_argv(token: str | None) -> None:
    """What stands on a command line is in the list of processes, and in the shell's history."""
    if token and not token.startswith("@"):
        note("a token on the command line can be read by everybody on this machine: use --token @FILE, or OSTLER_TOKEN")


def connect(access: Access, patience: "Patience | None" = None) -> "Hub":
    """The hub that these options, the environment and the state folder point to. Close it, or use it in `with`."""
    import logging

    from ostler.client.http import Hub

    # What a retry has to say, the error says in the end if there is one.
    logging.getLogger("ostler.client").setLevel(logging.ERROR)
    state = config.state_dir(access.state_dir)
    url, trust = config.hub_url(access.hub, state), config.trust(access.ca, state)
    warn_of_argv(access.token)
    try:
        return Hub(url, config.read_token(access.token, state, "admin"), trust=trust, patience=patience)
    except NotAuthenticated:
        # Before the first `ostler up` there is no token either: that no hub is there is then the thing to say.
        with Hub(url, trust=trust) as hub:
            hub.health()
        raise
