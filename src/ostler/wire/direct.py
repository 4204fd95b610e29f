"""What a hub answers to whoever would bring bytes past it, into the store itself."""

import msgspec


class Piece(msgspec.Struct):
    url: str
    first: int
    end: int
    headers: dict[str, str]


class Plan(msgspec.Struct):
    direct: bool
    whole: bool
    size: int
    pieces: list[Piece]
