"""Loads that people ask for. Each is a request without bytes: it waits its turn, has room made for it and is refused
as any other, and what is loaded has served it at once."""

import asyncio
from collections.abc import Callable
from itertools import count

from ostler.gateway.core import effects, events


class Wishes:
    """Their numbers are below zero; the relay's are not."""

    def __init__(self, step: Callable[[events.Event], None], errors: dict[str, str]) -> None:
        self._step = step
        self._errors = errors
        self._numbers = count(-1, -1)
        self.waiting: dict[int, str] = {}
        """The model that each wants."""

    def ask(self, model: str) -> None:
        """Once is enough: it is the same load that everybody asks for."""
        if model in self.waiting.values():
            return
        number = next(self._numbers)
        self.waiting[number] = model
        self._step(events.RequestArrived(number, model))

    def ask_again(self) -> None:
        """Of a scheduler that knows nothing of them."""
        for number, model in list(self.waiting.items()):
            self._step(events.RequestArrived(number, model))

    def granted(self, number: int) -> None:
        self.waiting.pop(number, None)
        # Nothing was served: how long that took is not to be learnt.
        asyncio.get_running_loop().call_soon(self._step, events.CallerGone(number))

    def refused(self, effect: effects.Refuse) -> None:
        model = self.waiting.pop(effect.request, None)
        if model is not None:
            self._errors.setdefault(model, effect.message)
