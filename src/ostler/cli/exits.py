"""Exit codes, and the one sentence that goes with each that is not 0."""

import sys
from typing import Any

import typer

from ostler.domain import errors

DONE = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_ALLOWED = 4
NOT_FOUND = 5
TIMED_OUT = 6
INTERRUPTED = 130


def code_of(error: errors.OstlerError) -> int:
    """Who must act decides: the caller (2), an operator (4), nobody yet (3, 6)."""
    from ostler.client.errors import HubUnreachable

    if isinstance(error, HubUnreachable):
        return UNREACHABLE
    if isinstance(error, errors.NotAuthenticated | errors.NotAllowed | errors.QuotaExceeded):
        return NOT_ALLOWED
    if isinstance(error, errors.NotFound):
        return NOT_FOUND
    if isinstance(error, TimeoutError):
        return TIMED_OUT
    return USAGE if isinstance(error, errors.BadInput | errors.Conflict) else FAILED


def sentence_of(error: errors.OstlerError) -> str:
    """The error in words; fields of a spec that the hub refused are named by the options that set them."""
    from ostler.cli.spec import option_of

    if isinstance(error, errors.NotAuthenticated) and "Bearer" in str(error):
        return "the hub does not know this token; bring a valid one by --token or OSTLER_TOKEN"
    if isinstance(error, errors.BadInput) and error.errors and str(error) == _joined(error.errors):
        return _joined([(_called(field, option_of(field)), what) for field, what in error.errors])
    return str(error)


def _joined(found: list[tuple[str, str]]) -> str:
    return "; ".join(f"{where}: {what}" for where, what in found)


def _called(field: str, option: str | None) -> str:
    return f"{option} ({field})" if option and option.startswith("--") else option or field


def usage_sentence(error: typer.TyperException) -> str:
    """What was wrong with the command line, and which help would have told."""
    context: Any = getattr(error, "ctx", None)
    told = error.format_message().rstrip(".")
    told = told[:1].lower() + told[1:]
    if context is None or told.endswith("?"):
        return told
    return f"{told}; see: {context.command_path} --help"


def complain(sentence: str) -> None:
    from ostler.cli.render.words import clean

    print(f"ostler: {clean(sentence)}", file=sys.stderr, flush=True)
