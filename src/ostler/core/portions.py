"""Events that are large: a step that may pause, so that whoever runs it can do something else in between.

Between two portions the fleet is neither as it was nor as it will be: nobody may decide by it, or write it down.
"""

from collections.abc import Generator, Sequence
from typing import Final, TypeVar

from ostler.core.effects import Effect

AT_ONCE: Final = 500
"""Jobs in one portion: a few milliseconds."""

T = TypeVar("T")
Portions = Generator[None, None, list[Effect]]


def is_whole(portion: Sequence[object]) -> bool:
    """A pause is worth it: what is less is done at once."""
    return len(portion) == AT_ONCE


def in_portions(things: list[T]) -> list[list[T]]:
    return [things[at : at + AT_ONCE] for at in range(0, len(things), AT_ONCE)]


def whole(portions: Portions) -> list[Effect]:
    """All of it at once."""
    while True:
        try:
            next(portions)
        except StopIteration as end:
            effects: list[Effect] = end.value
            return effects
