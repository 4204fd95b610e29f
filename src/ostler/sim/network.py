"""Between the hub and the machines: connections and single requests, which lose, delay, double and cut by chance.

Each direction of each machine has its own chances, so that what is taken out of a plan changes nothing elsewhere."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from ostler.core.effects import Effect, Reply
from ostler.core.events import Event, TaskAccepted, WorkerBeat, WorkerLeft, WorkerRegistered
from ostler.sim.plan import Weather

if TYPE_CHECKING:
    from ostler.sim.machine import Machine
    from ostler.sim.puller import Puller
    from ostler.sim.world import World

ANSWERED_WITHIN_S = 30.0
"""Whoever asks over HTTP gives up waiting then, whatever became of the question."""
NOTICED_WITHIN_S = 60.0
"""A cut that one side does not see at once is seen by then."""
ON_ITS_WAY_S = 0.02
"""Nothing takes longer in fair weather."""
FAIR = Weather()


class Overtaken:
    """Accounts that arrive after a message that was sent later. Nothing in them says how old they are: what the later
    message told of, and they do not, is taken for lost, and is not the hub's mistake. Streams that keep their order
    have none."""

    def __init__(self) -> None:
        self.left_out: set[str] = set()
        """Attempts that were missing from such an account."""
        self._named: dict[int, dict[str, int]] = {}
        """By connection: the newest message that has told that an attempt is there."""

    def heard(self, event: Event, session: int, number: int) -> None:
        named = self._named.setdefault(session, {})
        if isinstance(event, WorkerBeat | WorkerRegistered):
            there = {line.attempt for line in event.active_tasks or ()}
            self.left_out |= {one for one, newest in named.items() if newest > number and one not in there}
        elif isinstance(event, TaskAccepted):
            there = {event.attempt}
        else:
            return
        named.update((one, max(number, named.get(one, 0))) for one in there)


class Network:
    def __init__(self, world: "World", weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.links: dict[int, Machine] = {}
        self.carried = self.lost = self.doubled = self.late = 0
        self._session = 0
        self._asked_before = 0
        self._asked: dict[int, Callable[[Reply | None], None]] = {}
        self._asking: dict[int, str] = {}
        self._last_arrival: dict[tuple[str, int], float] = {}
        self._mute: set[tuple[str, int]] = set()
        """Connections, and the direction in which nothing gets through any more."""
        self._held_until: dict[str, float] = {}
        """Machines whose worker does not run until then: it neither reads nor writes."""
        self._chances: dict[str, random.Random] = {}
        self.overtaken = Overtaken()

    # Connections

    def open(self, machine: "Machine") -> int:
        self._session += 1
        self.links[self._session] = machine
        return self._session

    def to_hub(self, machine: "Machine", event: Event, session: int) -> None:
        number = self.carried

        def arrive() -> None:
            if session in self.links and ("up", session) not in self._mute:
                self.overtaken.heard(event, session, number)
                self.world.hear(event)

        self._carry(machine.name, "up", arrive, session)
        if not self.world.hub_up and machine.session == session:
            self.world.after(self._chance(machine.name).uniform(0, 1), lambda: self.drop(session))

    def to_machine(self, effect: Effect, session: int) -> None:
        machine = self.links.get(session)
        if machine is None:
            return

        def arrive() -> None:
            until = self._held_until.get(machine.name, 0.0)
            if until > self.world.now:
                self.world.at(until, arrive)
            elif ("down", session) not in self._mute:
                machine.hear(effect, session)

        self._carry(machine.name, "down", arrive, session)

    def cut(self, machine: "Machine") -> None:
        """The link breaks. One side may notice long after the other."""
        session = machine.session
        if not session:
            return
        chance = self._chance(machine.name)
        if chance.random() < 0.5:
            self.drop(session)
        else:
            machine.disconnected()
            self.world.after(chance.uniform(0, NOTICED_WITHIN_S), lambda: self.drop(session))

    def cut_one_way(self, machine: "Machine", direction: str) -> None:
        """Nothing gets through in this direction any more, until one side has noticed that and connects anew."""
        if machine.session:
            self._mute.add((direction, machine.session))

    def hold(self, machine: "Machine", seconds: float) -> None:
        self._held_until[machine.name] = max(self._held_until.get(machine.name, 0.0), self.world.now + seconds)

    def drop(self, session: int) -> None:
        machine = self.links.pop(session, None)
        if machine is None:
            return
        self.world.hear(WorkerLeft(worker_id=machine.name, session=session))
        if machine.session == session:
            machine.disconnected()

    def drop_all(self) -> None:
        for session in list(self.links):
            self.drop(session)

    def lags(self, session: int) -> bool:
        """Something is still on its way there, in either direction, for longer than anything takes today."""
        arrivals = (self._last_arrival.get((direction, session), 0.0) for direction in ("up", "down"))
        return max(arrivals) > self.world.now + ON_ITS_WAY_S

    # Requests

    def request(self, puller: "Puller", make: Callable[[int], Event], answered: Callable[[Reply | None], None]) -> None:
        """One request over HTTP. It may get lost, or its answer; None: there was none in time."""
        ref = -1 - self._asked_before
        self._asked_before += 1
        event = make(ref)

        def unless_cut(reply: Reply | None) -> None:
            if reply is None or not puller.is_cut_off:
                del self._asked[ref]
                answered(reply)

        self._asked[ref] = unless_cut
        self._asking[ref] = puller.name
        self._carry(puller.name, "up", lambda: None if puller.is_cut_off else self.world.hear(event))
        self.world.after(ANSWERED_WITHIN_S, lambda: self._answer(ref, None))

    def reply(self, effect: Reply) -> None:
        self._carry(self._asking[effect.ref], "down", lambda: self._answer(effect.ref, effect))

    def _answer(self, ref: int, reply: Reply | None) -> None:
        answered = self._asked.get(ref)
        if answered is not None:
            answered(reply)

    # What happens to a message

    def _chance(self, name: str) -> random.Random:
        found = self._chances.get(name)
        if found is None:
            found = self._chances[name] = random.Random(f"{name} of {self.world.seed}")
        return found

    def _carry(self, name: str, direction: str, arrive: Callable[[], None], session: int = 0) -> None:
        """With a session it is part of that connection's stream."""
        weather, draw = self.weather, self._chance(direction + name).random
        is_stream = weather.in_order and session > 0
        self.carried += 1
        copies = 1
        if weather.duplicate and not is_stream and draw() < weather.duplicate:
            copies, self.doubled = 2, self.doubled + 1
        for _ in range(copies):
            if weather.lose and not is_stream and draw() < weather.lose:
                self.lost += 1
                continue
            delay = 0.0005 + (ON_ITS_WAY_S - 0.0005) * draw()
            if weather.slow and draw() < weather.slow:
                delay += weather.slow_s * draw()
                self.late += 1
            at = max(self.world.now + delay, self._held_until.get(name, 0.0) if direction == "up" else 0.0)
            if is_stream:
                lane = (direction, session)
                at = self._last_arrival[lane] = max(at, self._last_arrival.get(lane, 0.0))
            self.world.at(at, arrive)
