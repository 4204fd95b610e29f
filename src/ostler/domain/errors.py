"""Every error that a person can meet, split by who must act. The docstring is the advice."""


class OstlerError(Exception):
    """Something went wrong that the caller can read and act on."""

    status = 500
    title = "internal error"


class BadInput(OstlerError):
    """The request cannot be understood or holds a wrong value: the caller corrects it."""

    status = 422
    title = "bad input"

    def __init__(self, detail: str, errors: list[tuple[str, str]] | None = None) -> None:
        super().__init__(detail)
        self.errors = errors or []


class Unreadable(BadInput):
    """The bytes are not what they claim to be (not JSON, not TOML): the caller corrects them."""

    status = 400
    title = "unreadable"


class TooLarge(BadInput):
    """The request is larger than the hub takes: the caller sends less."""

    status = 413
    title = "too large"


class NotAuthenticated(OstlerError):
    """No token, or one the hub does not know: the caller brings a valid one."""

    status = 401
    title = "not authenticated"


class NotAllowed(OstlerError):
    """The token's role does not reach this far: an operator grants more."""

    status = 403
    title = "not allowed"


class NotFound(OstlerError):
    """There is no such thing, or the caller may not see it."""

    status = 404
    title = "no such thing"


class Hidden(NotFound):
    """It is somebody else's: to this caller it does not exist, and the audit is told."""


class Conflict(OstlerError):
    """The thing exists already and differs: the caller picks another id or key."""

    status = 409
    title = "conflict"


class QuotaExceeded(OstlerError):
    """The user has as much as one may have: something must end first, or an operator raises the quota."""

    status = 429
    title = "quota exceeded"


class TooOften(OstlerError):
    """The caller asks more often than the hub bears with: it waits, and asks less."""

    status = 429
    title = "too often"

    def __init__(self, detail: str, wait_s: float) -> None:
        super().__init__(detail)
        self.wait_s = wait_s


class NotRunning(OstlerError):
    """The service cannot take this now: the caller asks again a little later."""

    status = 503
    title = "not running"


class BrokeOff(OstlerError):
    """The service took the call and did not answer it: its owner looks at its log."""

    status = 502
    title = "broke off"


class NoAnswer(OstlerError):
    """The machine behind the hub did not do its part in time: an operator looks at it."""

    status = 504
    title = "no answer"


class LedgerError(OstlerError):
    """The ledger could not be read or written: the hub stops, and its operator looks at the disk."""

    status = 503
    title = "ledger error"


class NotYet(LedgerError):
    """The ledger cannot be had now, but waiting may help: its server is away or starting, or another hub leads."""


class Deposed(LedgerError):
    """Another hub leads now: this one writes nothing any more and stops."""


class NoSpace(OstlerError):
    """The hub's disk is nearly full: its operator makes room, and the caller asks again."""

    status = 507
    title = "no space"


class StoreAway(OstlerError):
    """The store of artifacts and snapshots does not do what is asked of it: its operator looks at it, and the caller
    asks again later."""

    status = 503
    title = "store away"


class NotLeading(OstlerError):
    """This hub stands by: the caller asks the one that leads, or waits until one does."""

    status = 503
    title = "not leading"

    def __init__(self, detail: str, leader: str = "") -> None:
        super().__init__(detail)
        self.leader = leader


class IllegalMove(Exception):
    """A state machine was asked for a move that its table does not have. Always a bug."""
