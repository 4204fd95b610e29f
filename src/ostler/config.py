"""Where things are and what was asked for: flags, then OSTLER_* variables, then defaults."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import platformdirs

from ostler.domain.errors import BadInput, NotAuthenticated

if TYPE_CHECKING:
    from ostler.tls import Trust

DEFAULT_PORT = 7600
DEFAULT_GATEWAY_PORT = 7601
DEFAULT_HUB = f"http://127.0.0.1:{DEFAULT_PORT}"
CONFIG_FILE = "ostler.toml"
TOKEN_FILES = {"admin": "admin.token", "join": "join.token"}
CA_FILE = "ca.pem"
"""In a hub's state folder: the certificate of its own authority, which is no secret."""
LONGEST_SOCKET_FOLDER = 60
"""The name of a Unix socket may have about 100 bytes, of which the folder inside it and the socket need up to 40."""


def make_socket_folder() -> Path:
    """Creates a private folder for Unix sockets: in the system's temporary folder, or in /tmp if that name is long."""
    usual = tempfile.gettempdir()
    is_short = len(os.fsencode(usual)) <= LONGEST_SOCKET_FOLDER
    return Path(tempfile.mkdtemp(prefix="ostler-", dir=usual if is_short else "/tmp"))


def state_dir(flag: str | Path | None = None) -> Path:
    """The folder that holds the state of a hub or of workers."""
    chosen = flag or os.environ.get("OSTLER_STATE_DIR") or platformdirs.user_data_dir("ostler", appauthor=False)
    return Path(chosen).expanduser().absolute()


def config_file(flag: str | Path | None, state: Path) -> Path | None:
    """The hub's settings file: as given, from the environment, or the state folder's, where there is one."""
    chosen = flag or os.environ.get("OSTLER_CONFIG")
    if chosen:
        return Path(chosen).expanduser().absolute()
    own = state / CONFIG_FILE
    return own if own.exists() else None


def ledger_url(flag: str, from_file: str) -> str:
    """Where the hub's ledger is: as given, from the environment, or from its settings file; empty: its own file."""
    return flag or os.environ.get("OSTLER_LEDGER") or from_file


def store_places(flag: str, from_file: str, state: Path) -> tuple[Path, str]:
    """Where the hub's files are: as given, from the environment, or from its settings file; else its state folder. A
    folder, and a bucket or nothing: the two have a comma between them."""
    chosen = flag or os.environ.get("OSTLER_STORE") or from_file
    parts = [part.strip() for part in chosen.split(",")] if "s3://" in chosen else [chosen]
    buckets = [part for part in parts if part.startswith("s3://")]
    folders = [part for part in parts if part and part not in buckets]
    if len(buckets) > 1 or len(folders) > 1:
        raise BadInput(
            f"store: {chosen!r} names too many places; write a folder, a bucket like s3://BUCKET/PREFIX, or one of "
            "each with a comma between them",
            [("store", "too many places")],
        )
    return Path(folders[0]).expanduser().absolute() if folders else state, buckets[0] if buckets else ""


def store_shown(flag: str, from_file: str, state: Path) -> str:
    """The same as it may be written down, wherever it is read."""
    folder, bucket = store_places(flag, from_file, state)
    return f"{bucket},{folder}" if bucket and folder != state else bucket or str(folder)


def own_url(flag: str, from_file: str) -> str:
    """Where others reach the hub, if that is said anywhere."""
    url = (flag or os.environ.get("OSTLER_URL") or from_file).rstrip("/")
    if url and not (url.startswith(("http://", "https://")) and _is_one_address(url)):
        raise BadInput(f"url: {url!r} is not an address; write it like {DEFAULT_HUB}", [("url", "not an http(s) URL")])
    return url


def _is_one_address(url: str) -> bool:
    """One that others may be told of: in a header, and in a list with commas."""
    try:
        return bool(urlsplit(url).hostname) and all("!" <= char <= "~" and char != "," for char in url)
    except ValueError:
        return False


def refuse_password(ledger: str, where: str) -> None:
    """In an address that is to stand on a command line: everybody on the machine can read that."""
    userinfo, at, _ = ledger.partition("://")[2].rpartition("@")
    if (at and ":" in userinfo) or "password=" in ledger.lower():
        raise BadInput(
            f"{where}: no password belongs on a command line, which everybody on this machine can read; give the whole "
            "address as `ledger` in ostler.toml, or the password in ~/.pgpass",
            [("ledger", "has a password")],
        )


def hub_url(flag: str | None = None, state: Path | None = None) -> str:
    """As given, from the environment, as a hub of this state folder says it listens, or the default. Those of several
    hubs have commas between them."""
    given = flag or os.environ.get("OSTLER_HUB") or _url_said_in(state or state_dir()) or DEFAULT_HUB
    urls = [part.strip().rstrip("/") for part in given.split(",") if part.strip()] or [given]
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise BadInput(
                f"hub: {url!r} is not an address; write it like {DEFAULT_HUB}", [("hub", "not an http(s) URL")]
            )
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise BadInput(
                "hub: no name and no secret belong in an address, which ends up in logs; give the token by --token "
                "@FILE or OSTLER_TOKEN",
                [("hub", "has a secret")],
            )
    return ",".join(dict.fromkeys(urls))


def trust(flag: str | None = None, state: Path | None = None) -> "Trust":
    """By what hubs are known: as given (FILE or sha256:FINGERPRINT), from the environment, or by what the system trusts
    and, on a hub's own machine, by its authority."""
    from ostler.tls import Trust

    own = (state or state_dir()) / CA_FILE
    return Trust(flag or os.environ.get("OSTLER_CA") or "", own if own.exists() else None)


def _url_said_in(state: Path) -> str:
    try:
        return (state / "hub.url").read_text().strip()
    except OSError:
        return ""


def read_token(flag: str | None, state: Path, kind: Literal["admin", "join"]) -> str:
    """The token as given (`T` or `@FILE`), from the environment, or the hub's own file on its own machine."""
    given = flag or os.environ.get("OSTLER_TOKEN")
    if given:
        return _from_file(Path(given[1:])) if given.startswith("@") else given
    own = state / TOKEN_FILES[kind]
    if own.exists():
        return _from_file(own)
    raise NotAuthenticated(
        f"no token: give --token or OSTLER_TOKEN, or run this on the hub's machine as the hub's user (looked for {own})"
    )


def token_file(flag: str | None, state: Path, kind: Literal["admin", "join"]) -> Path | None:
    """Where `read_token` found it, if that is a file: what stands there may be replaced."""
    given = flag or os.environ.get("OSTLER_TOKEN")
    if given:
        return Path(given[1:]) if given.startswith("@") else None
    return state / TOKEN_FILES[kind]


def _from_file(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise NotAuthenticated(f"the token file {path} cannot be read: {error.strerror}") from None
