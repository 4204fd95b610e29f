"""The last requests for models, newest first: who asked for what, how it ended, how long each part took. Never what was
said."""

from collections import deque
from itertools import islice

import msgspec

from ostler.gateway import control
from ostler.hub.documents import Document, timestamp

KEPT = 1000


class Ended(msgspec.Struct, frozen=True):
    at: float
    """By the wall clock."""
    model: str
    user: str
    status: int
    error: str = ""
    queue_s: float = 0.0
    first_byte_s: float = 0.0
    total_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    request_id: str = ""
    """The `X-Request-Id` of the request and of its answer."""

    def document(self) -> Document:
        return {**msgspec.to_builtins(self), "at": timestamp(self.at)}


class Activity:
    def __init__(self) -> None:
        self._ended: deque[Ended] = deque(maxlen=KEPT)

    def served(self, done: control.Done, at: float) -> None:
        self._ended.append(
            Ended(
                at,
                done.model,
                done.user,
                done.status,
                done.error,
                done.queue_s,
                done.first_byte_s,
                done.total_s,
                done.prompt_tokens,
                done.completion_tokens,
                done.request_id,
            )
        )

    def add(self, ended: Ended) -> None:
        self._ended.append(ended)

    def listing(self, user: str | None, limit: int = KEPT) -> list[Document]:
        """Those of one user, or of all."""
        found = (one.document() for one in reversed(self._ended) if user is None or one.user == user)
        return list(islice(found, limit))
