"""A thread beside the loop, that does one thing after another: an executor of one thread, for two thirds of its cost. A
job alone on an idle fleet waits for this several times."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
_Errand = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Aside:
    def __init__(self, name: str) -> None:
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def do(self, work: "Callable[[], T]") -> "asyncio.Future[T]":
        """Its result. Who does not wait for it any more does not stop it."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        self._errands.put((work, loop, result))
        return result

    def close(self) -> None:
        """When all that was asked for is done."""
        self.leave()
        self._thread.join()

    def leave(self) -> None:
        """The same, and nobody waits for it: what is at work then may end with the process."""
        self._errands.put(None)

    def _work(self) -> None:
        while (errand := self._errands.get()) is not None:
            work, loop, result = errand
            try:
                tell: tuple[Any, ...] = (_done, result, work())
            except BaseException as error:
                tell = (_failed, result, error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(*tell)
            del errand, work, result, tell  # nothing of it is kept until the next one comes


def _done(result: "asyncio.Future[T]", value: T) -> None:
    if not result.done():
        result.set_result(value)


def _failed(result: "asyncio.Future[T]", error: BaseException) -> None:
    if not result.done():
        result.set_exception(error)
