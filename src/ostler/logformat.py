"""How a hub and a worker write their own logs: lines for people, or one JSON object a line for programs.

An object has `time` (RFC 3339, UTC), `level`, `logger` and `message`; `error` with the traceback where there is one;
and `worker`, `job`, `task` and `attempt` where it is known of which one it tells.
"""

import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType

from ostler.domain.errors import BadInput

VARIABLE = "OSTLER_LOG_FORMAT"
TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
PLAIN = "%(asctime)s %(levelname)s %(message)s"
OF = ("worker", "job", "task", "attempt")
"""What a record may be about: given with `extra`."""

_log = logging.getLogger("ostler")


def chosen(flag: str = "") -> str:
    """As asked for, from the environment, or text."""
    found = flag or os.environ.get(VARIABLE) or TEXT
    if found not in FORMATS:
        where = "--log-format" if flag else VARIABLE
        raise BadInput(f"{where}: {found!r} is not one of {', '.join(FORMATS)}", [("log-format", "unknown format")])
    return found


def set_up(level: str, format: str, **about: str) -> None:
    """From now on everything is told on standard error; `about` is what all of it is of, like worker="gpu-1"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(about) if format == JSON else logging.Formatter(PLAIN))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if format == JSON:
        logging.captureWarnings(True)
        sys.excepthook = _tell_of_the_end
        threading.excepthook = lambda args: _tell_of_the_end(args.exc_type, args.exc_value, args.exc_traceback)


def _tell_of_the_end(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """What nobody caught, in the same manner as all the rest."""
    if error is not None and not issubclass(kind, (KeyboardInterrupt, SystemExit)):
        _log.critical("a bug: %s: %s", kind.__name__, error, exc_info=(kind, error, trace))


class Lines(logging.Formatter):
    def __init__(self, about: dict[str, str]) -> None:
        super().__init__()
        self._about = about

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {"time": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        told |= {name: str(found) for name in OF if (found := getattr(record, name, None) or self._about.get(name))}
        if "task" in told:
            told.setdefault("job", told["task"].partition(".")[0])
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(
            told
        )  # in ASCII: whatever encoding standard error has, and whatever a reader takes for a line
