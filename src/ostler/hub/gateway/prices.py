"""What the room of a model's idle process costs a job that wants it: named to the ledger, and taken back when the model
is used again."""

import asyncio
from collections.abc import Callable

from ostler.core.events import ModelPriced
from ostler.hub.gateway.instances import READY, Instance
from ostler.hub.loop import Loop

IDLE_AFTER_S = 1.0
"""So long after its last request a model's room is offered to jobs: one that is used all the time costs the ledger
nothing."""
LOOK_AGAIN_S = 5.0
"""At one that is idle and not to be had: pinned, or promised to another model, which may come to nothing."""


class Prices:
    """`price` is the scheduler's, by the token of the load; None: it is not to be had."""

    def __init__(self, loop: Loop, price: Callable[[int, float], float | None]) -> None:
        self._loop = loop
        self._price = price

    def used(self, instance: Instance) -> None:
        """It serves, or has just served."""
        instance.last_use = self._loop.now()
        self.withdraw(instance)

    def withdraw(self, instance: Instance) -> None:
        """It is not to be had after all, for now."""
        if instance.priced:
            instance.priced = False
            self._loop.post(ModelPriced(job_id=instance.job_id, price_s=None))
        self.look(instance)

    def anew(self, instance: Instance) -> None:
        """What a price depends on may be otherwise now."""
        if instance.idle_timer is not None:
            instance.idle_timer.cancel()
            instance.idle_timer = None
        self.withdraw(instance)

    def look(self, instance: Instance, after_s: float = IDLE_AFTER_S) -> None:
        """Whether it is idle, when it may be."""
        if instance.idle_timer is None and instance.phase == READY:
            instance.idle_timer = asyncio.get_running_loop().call_later(after_s, self._look, instance)

    def _look(self, instance: Instance) -> None:
        instance.idle_timer = None
        if instance.phase != READY or instance.in_flight or instance.priced:
            return
        left_s = instance.last_use + IDLE_AFTER_S - self._loop.now()
        if left_s > 0:
            self.look(instance, left_s)
            return
        price_s = self._price(instance.load, self._loop.now())
        if price_s is None:
            self.look(instance, LOOK_AGAIN_S)
        else:
            instance.priced = True
            self._loop.post(ModelPriced(job_id=instance.job_id, price_s=price_s))
