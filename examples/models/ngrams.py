"""A language model of the smallest kind: which word followed which, counted in one text."""

import hashlib
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

TOKEN = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*|\d+|[^\sA-Za-z\d]")
ENDS = frozenset(".!?")
NO_BLANK_BEFORE = frozenset(".,;:!?)")
DIMENSIONS = 256


def tokens_of(text: str) -> list[str]:
    return TOKEN.findall(text)


class NGrams:
    """The next token by the last `order` ones; where those were never seen together, by fewer of them."""

    def __init__(self, text: str, order: int) -> None:
        self.order = order
        self._next: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        tokens = tokens_of(text)
        for at, token in enumerate(tokens):
            for length in range(min(order, at) + 1):
                self._next[tuple(word.lower() for word in tokens[at - length : at])][token] += 1

    def continued(self, prompt: Sequence[str], temperature: float, seed: int | None) -> Iterator[str]:
        """One token after the other, without end. The same seed gives the same text; temperature 0, the likeliest."""
        chance = random.Random(seed)
        seen = [token.lower() for token in prompt]
        while True:
            token = self._choose(seen[-self.order :] if self.order else [], temperature, chance)
            seen.append(token.lower())
            yield token

    def _choose(self, last: Sequence[str], temperature: float, chance: random.Random) -> str:
        context = tuple(last)
        while context and context not in self._next:
            context = context[1:]
        counted = self._next[context]
        if temperature <= 0:
            return min(counted, key=lambda token: (-counted[token], token))
        most = max(counted.values())
        weights = [math.exp(math.log(count / most) / temperature) for count in counted.values()]
        return chance.choices(list(counted), weights)[0]


def spaced(token: str, before: str) -> str:
    """The token as it stands in a text, after this one."""
    return token if not before or token in NO_BLANK_BEFORE or before in "(" else f" {token}"


def embedding(text: str) -> list[float]:
    """Words and their pieces, hashed into a vector of length 1: texts that share words are near each other."""
    vector = [0.0] * DIMENSIONS
    for word in tokens_of(text.lower()):
        padded = f"<{word}>"
        for piece in (word, *(padded[at : at + 3] for at in range(len(padded) - 2))):
            digest = hashlib.blake2b(piece.encode(), digest_size=8).digest()
            sign = 1.0 if digest[0] & 1 else -1.0
            vector[int.from_bytes(digest[1:], "big") % DIMENSIONS] += sign
    length = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / length for value in vector]
