"""Keys in order, each with a mask: which is the first whose mask meets another?

They stand in chunks, each with the union of its masks, so that a chunk in which nobody is meant costs one look. Those
that came first are mostly those that nobody can serve; a plain search would meet all of them every time. A union may
have more than its masks since some have left; whoever is misled by that makes it anew.
"""

from bisect import bisect_left, bisect_right
from math import isqrt
from typing import Final, Generic, TypeVar

K = TypeVar("K", int, tuple[float, str])
LEAST: Final = 8
"""Keys in a chunk, or the square root of how many there are; one with twice as many is split. So a search looks at
about as many chunks as keys."""


class _Chunk(Generic[K]):
    __slots__ = ("keys", "masks", "union")

    def __init__(self, keys: list[K], masks: list[int]) -> None:
        self.keys: list[K] = keys
        self.masks = masks
        self.unite()

    def unite(self) -> None:
        union = 0
        for mask in self.masks:
            union |= mask
        self.union = union


class Masked(Generic[K]):
    __slots__ = ("_chunks", "_count", "_lasts")

    def __init__(self) -> None:
        self._count = 0
        self._chunks: list[_Chunk[K]] = []
        self._lasts: list[K] = []
        """The last key of each."""

    def __len__(self) -> int:
        return self._count

    def keys(self) -> list[K]:
        return [key for chunk in self._chunks for key in chunk.keys]

    def set(self, key: K, mask: int) -> None:
        """Add a key, or give it another mask."""
        if not self._chunks:
            self._chunks.append(_Chunk([key], [mask]))
            self._lasts.append(key)
            self._count += 1
            return
        number = min(bisect_left(self._lasts, key), len(self._chunks) - 1)
        chunk = self._chunks[number]
        place = bisect_left(chunk.keys, key)
        if place < len(chunk.keys) and chunk.keys[place] == key:
            chunk.masks[place] = mask
            chunk.union |= mask
            return
        chunk.keys.insert(place, key)
        chunk.masks.insert(place, mask)
        chunk.union |= mask
        self._lasts[number] = chunk.keys[-1]
        self._count += 1
        if len(chunk.keys) > 2 * LEAST and len(chunk.keys) > 2 * isqrt(self._count):
            self._split(number)

    def _split(self, number: int) -> None:
        chunk = self._chunks[number]
        half = len(chunk.keys) // 2
        rest = _Chunk(chunk.keys[half:], chunk.masks[half:])
        del chunk.keys[half:], chunk.masks[half:]
        chunk.unite()
        self._chunks.insert(number + 1, rest)
        self._lasts[number : number + 1] = [chunk.keys[-1], rest.keys[-1]]

    def remove(self, key: K) -> None:
        number = bisect_left(self._lasts, key)
        chunk = self._chunks[number]
        place = bisect_left(chunk.keys, key)
        del chunk.keys[place], chunk.masks[place]
        self._count -= 1
        if not chunk.keys:
            del self._chunks[number], self._lasts[number]
            return
        self._lasts[number] = chunk.keys[-1]

    def first(self, mask: int, after: K | None = None) -> K | None:
        """The first key whose mask meets this one, of those that come after another."""
        chunks = self._chunks
        if after is not None:
            number = bisect_right(self._lasts, after)
            if number == len(chunks):
                return None
            found = _first_in(chunks[number], mask, bisect_right(chunks[number].keys, after))
            if found is not None:
                return found
            chunks = chunks[number + 1 :]
        for chunk in chunks:
            if chunk.union & mask:
                found = _first_in(chunk, mask)
                if found is not None:
                    return found
                chunk.unite()
        return None


def _first_in(chunk: _Chunk[K], mask: int, place: int = 0) -> K | None:
    for other in chunk.masks[place:]:
        if other & mask:
            return chunk.keys[place]
        place += 1
    return None
