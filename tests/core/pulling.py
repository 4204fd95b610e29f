"""Machines that only claim, and everything that may happen between them and the hub."""

from collections.abc import Callable
from itertools import count
from typing import Any

from tests.core.core_fleet import CoreFleet, capabilities

from ostler.core.effects import Answer, Beaten, Claimed, Effect, Refuse
from ostler.core.events import ClaimBeat, ClaimEnded, ClaimRequested, Event, TaskEnded
from ostler.domain.worker import Capabilities, DeviceInfo

ENDS = ["succeeded", "failed", "returned"]


def with_gpus(*free: float) -> Capabilities:
    """Devices of 24 GiB, of which this much is free."""
    said = capabilities(cores=8, memory=32, devices=[24.0 for _ in free])
    said.devices = [DeviceInfo(index=index, vram_gb=24.0, vram_free_gb=left) for index, left in enumerate(free)]
    return said


SAID: list[Capabilities] = [
    capabilities(cores=4, memory=8),
    capabilities(cores=4, memory=0, memory_available_gb=6.0),
    capabilities(cores=2, memory=16, memory_available_gb=3.0),
    capabilities(cores=4, memory=0, memory_available_gb=0.5),
    with_gpus(24.0),
    with_gpus(9.0, 24.0),
    with_gpus(24.0, 24.0, 2.0),
]


class PullMachine:
    """A plain one names its tasks and not its attempts."""

    def __init__(self, name: str, hostname: str, *, plain: bool = False) -> None:
        self.name = name
        self.hostname = hostname
        self.plain = plain
        self.tasks: dict[str, str] = {}
        self.ended: list[tuple[str, str, str]] = []
        """(task, attempt, state) of what it has told the hub."""

    def named(self, attempt: str) -> str:
        return "" if self.plain else attempt


class Pulling:
    """A part of the random fleet: see there."""

    core: CoreFleet
    waiting: list[Event]
    turn: Callable[..., None]

    def __init__(self) -> None:
        self.pullers = [PullMachine("p0", "pi"), PullMachine("p1", "box", plain=True), PullMachine("w1", "w1")]
        """The last has the name of a machine that also comes with a connection."""
        self.asked: dict[int, Callable[[Any], None]] = {}
        """What is done with the answer to each question."""
        self._verdicts: dict[tuple[str, str], bool] = {}
        self._questions = count(1_000_000)

    def has_claims(self) -> bool:
        return any(machine.tasks for machine in self.pullers)

    def _puller(self, number: int) -> PullMachine:
        return self.pullers[number % len(self.pullers)]

    def _ask(self, answered: Callable[[Any], None]) -> int:
        ref = next(self._questions)
        self.asked[ref] = answered
        return ref

    # Claims

    def claim(self, which: int, said: int) -> None:
        self.turn(self._claiming(self._puller(which), said))

    def claim_soon(self, which: int, said: int) -> None:
        self.waiting.append(self._claiming(self._puller(which), said))

    def claim_unheard(self, which: int, said: int) -> None:
        """The answer gets lost: the claim is nobody's until its lease is over."""
        event = self._claiming(self._puller(which), said)
        del self.asked[event.ref]
        self.turn(event)

    def _claiming(self, machine: PullMachine, said: int) -> ClaimRequested:
        def answered(effect: Effect) -> None:
            if isinstance(effect, Claimed):
                machine.tasks[effect.attempt] = effect.task_id

        offer = SAID[said % len(SAID)]
        offer = Capabilities(**{field: getattr(offer, field) for field in offer.__struct_fields__})
        offer.hostname = machine.hostname
        return ClaimRequested(
            ref=self._ask(answered), worker_id=machine.name, capabilities=offer, capability=b'{"cpu_cores": 1}'
        )

    # Heartbeats

    def pull_beat(self, which: int, heard: int) -> None:
        machine = self._puller(which)
        self.turn(*self._beats(machine, heard=bool(heard % 2)))

    def pull_beat_soon(self, which: int, _: int = 0) -> None:
        self.waiting += self._beats(self._puller(which), heard=True)

    def all_beats(self) -> list[Event]:
        return [event for machine in self.pullers for event in self._beats(machine, heard=True)]

    def _beats(self, machine: PullMachine, *, heard: bool) -> list[Event]:
        return [
            ClaimBeat(
                ref=self._ask(self._beat_answered(machine, attempt) if heard else lambda _: None),
                worker_id=machine.name,
                task_id=task_id,
                attempt=machine.named(attempt),
            )
            for attempt, task_id in machine.tasks.items()
        ]

    def _beat_answered(self, machine: PullMachine, attempt: str) -> Callable[[Any], None]:
        def answered(effect: Effect) -> None:
            task_id = machine.tasks.get(attempt)
            if task_id is None:
                return
            if isinstance(effect, Refuse):
                del machine.tasks[attempt]
            elif isinstance(effect, Beaten) and effect.cancel:
                self.waiting.append(self._ending(machine, attempt, "failed"))

        return answered

    # Ends

    def pull_end(self, which: int, state: int) -> None:
        machine = self._puller(which)
        if machine.tasks:
            self.turn(self._ending(machine, next(iter(machine.tasks)), ENDS[state % len(ENDS)]))

    def pull_end_soon(self, which: int, state: int) -> None:
        machine = self._puller(which)
        if machine.tasks:
            self.waiting.append(self._ending(machine, next(iter(machine.tasks)), ENDS[state % len(ENDS)]))

    def pull_repeat(self, which: int, back: int) -> None:
        """The answer to an end got lost, and it is said again."""
        machine = self._puller(which)
        if machine.ended:
            self.turn(self._told(machine, *machine.ended[-1 - back % min(len(machine.ended), 4)]))

    def pull_crash(self, which: int, _: int = 0) -> None:
        """Its tasks are gone, and nobody says so."""
        self._puller(which).tasks.clear()

    def _ending(self, machine: PullMachine, attempt: str, state: str) -> ClaimEnded:
        told = (machine.tasks.pop(attempt), attempt, state)
        machine.ended.append(told)
        return self._told(machine, *told)

    def _told(self, machine: PullMachine, task_id: str, attempt: str, state: str) -> ClaimEnded:
        def answered(effect: Effect) -> None:
            """What was once taken is taken again, and what was refused is refused for ever."""
            accepted = isinstance(effect, Answer)
            before = self._verdicts.setdefault((attempt, state), accepted)
            assert machine.plain or before == accepted, f"{task_id} {state}: {before} before, {accepted} now"

        end = TaskEnded(
            worker_id=machine.name,
            session=0,
            task_id=task_id,
            attempt=machine.named(attempt),
            state=state,
            exit_code={"succeeded": 0, "failed": 1}.get(state),
            fault="drain" if state == "returned" else "",
        )
        return ClaimEnded(ref=self._ask(answered), end=end, history=self.core.ledger.attempts_of(task_id))

    def pull_round(self, _: int = 0, __: int = 0) -> None:
        """Every machine beats, and asks for more where it has nothing."""
        for number, machine in enumerate(self.pullers):
            if machine.tasks:
                self.pull_beat(number, 1)
            else:
                self.claim(number, number * 2)
