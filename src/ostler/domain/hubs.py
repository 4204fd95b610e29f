"""The addresses of a fleet's hubs, as whoever talks to them knows them: perhaps several, of which one leads."""

from collections.abc import Sequence
from urllib.parse import urlsplit

LEADER_HEADER = "Ostler-Leader"
"""In the refusal of a hub that stands by: where the one that leads is reached, empty where none does."""
MOST_LEARNT = 8
"""Of hubs that come and go with new addresses the last ones are remembered, beside those that were given."""
_HERE = ("127.0.0.1", "localhost", "::1")


def same_fleet(one: str, other: str) -> bool:
    """Whether these name a hub in common: a fleet may be given further hubs."""
    return not set(one.split(",")).isdisjoint(other.split(","))


class Addresses:
    """`current` is the one to talk to: the one that answered last, else the next one to try."""

    def __init__(self, given: str) -> None:
        self.known = [part.strip().rstrip("/") for part in given.split(",") if part.strip()] or [given]
        self.current = self.known[0]
        self._given = tuple(self.known)
        self._tried: set[str] = set()
        """In vain, since the last answer or the last pause."""

    def __str__(self) -> str:
        return ",".join(self.known)

    def answered(self) -> None:
        self._tried.clear()

    def failed(self, address: str, leader: str = "") -> bool:
        """No answer from there, or that another leads. False: each has had its turn since the last one that answered,
        so this is the time for a pause."""
        if address != self.current:
            return True  # somebody else has moved on already
        self._tried.add(address)
        others = self.known[self.known.index(address) + 1 :] + self.known[: self.known.index(address)]
        if leader and self.learn([leader]):
            others.insert(0, leader)
        untried = [other for other in others if other not in self._tried]
        self.current = next(iter(untried or others), address)
        if not untried:
            self._tried.clear()
        return bool(untried)

    def learn(self, told: Sequence[str]) -> bool:
        """A hub has told of others. True: all of them may be asked."""
        sound = [address for address in told if self._may_ask(address)]
        new = [address for address in dict.fromkeys(sound) if address not in self._given]
        old = [address for address in self.known if address not in (*self._given, *new)]
        old.sort(key=self.current.__eq__)  # the one that is talked to is no old one
        self.known = [*self._given, *old[-MOST_LEARNT:], *new]
        return len(sound) == len(told)

    def _may_ask(self, told: str) -> bool:
        """A token that goes by TLS goes no other way, and what is "here" to a hub elsewhere is not here."""
        try:
            now, then = urlsplit(self.current), urlsplit(told)
        except ValueError:
            return False
        if then.scheme != "https" and (then.scheme != "http" or now.scheme == "https"):
            return False
        return bool(then.hostname) and (then.hostname not in _HERE or now.hostname in _HERE)
