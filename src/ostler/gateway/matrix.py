"""The expressions of llama-swap's matrix: `a & (b | c) & +other`, each a choice of models that may be together."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product

MOST_SETS = 1000
_TOKEN = re.compile(r"\s*(?:(?P<sign>[&|()])|(?P<name>\+?[\w.-]+)|(?P<other>\S))")

Together = tuple[str, ...]


class Unclear(ValueError):
    """The text is the message."""


class Matrix:
    """`model` says which model a name in an expression stands for."""

    def __init__(self, expressions: Mapping[str, str], model: Callable[[str], str]) -> None:
        self._expressions = expressions
        self._model = model

    def sets(self, name: str) -> list[Together]:
        """The sets that this expression stands for."""
        return self._named(name, ())

    def _named(self, name: str, trail: tuple[str, ...]) -> list[Together]:
        if name in trail:
            raise Unclear(f"stands for itself: {' → '.join((*trail, name))}")
        if name not in self._expressions:
            raise Unclear(f"there is no set {name!r}")
        tokens = list(_tokens(self._expressions[name]))
        found = self._either(tokens, (*trail, name))
        if tokens:
            raise Unclear(f"has {tokens[0]!r} where it should end")
        return found

    def _either(self, tokens: list[str], trail: tuple[str, ...]) -> list[Together]:
        found = self._both(tokens, trail)
        while tokens[:1] == ["|"]:
            tokens.pop(0)
            found += self._both(tokens, trail)
        return list(dict.fromkeys(found))

    def _both(self, tokens: list[str], trail: tuple[str, ...]) -> list[Together]:
        parts = [self._one(tokens, trail)]
        while tokens[:1] == ["&"]:
            tokens.pop(0)
            parts.append(self._one(tokens, trail))
            if len(parts[0]) * len(parts[1]) > MOST_SETS:
                raise Unclear(f"stands for more than {MOST_SETS} sets")
            parts = [[tuple(dict.fromkeys(one + other)) for one, other in product(*parts)]]
        return parts[0]

    def _one(self, tokens: list[str], trail: tuple[str, ...]) -> list[Together]:
        token = tokens.pop(0) if tokens else ""
        if token == "(":
            found = self._either(tokens, trail)
            if not tokens or tokens.pop(0) != ")":
                raise Unclear("a parenthesis is not closed")
            return found
        if not token or token in "&|)":
            raise Unclear(f"has {token!r} where a model should be" if token else "ends where a model should be")
        return self._named(token[1:], trail) if token.startswith("+") else [(self._model(token),)]


def _tokens(text: str) -> Iterator[str]:
    for found in _TOKEN.finditer(text.rstrip()):
        if found["other"]:
            raise Unclear(f"has {found['other']!r}, which means nothing")
        yield found["sign"] or found["name"]
