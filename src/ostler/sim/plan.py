"""What is to happen in one world, as plain data: it is drawn from a seed once, and can be run, reduced and kept."""

import msgspec

from ostler.domain.job import JobSpec
from ostler.domain.quota import Quota
from ostler.domain.scheduling import HOLD_AFTER_S
from ostler.domain.worker import Capabilities

# What may be done to a world. Users:
CANCEL = "cancel"
REQUEUE = "requeue"
CANCEL_TASK = "cancel a task"
REQUEUE_TASK = "requeue a task"
DRAIN = "drain"
RESUME = "resume"
ASK = "ask for work"
# Faults:
HUB_CRASH = "hub crash"
HUB_STALL = "hub stall"
WALL_JUMP = "wall clock jump"
CUT = "cut"
CUT_UP = "cut one way, to the hub"
CUT_DOWN = "cut one way, from the hub"
WORKER_KILLED = "worker killed"
WORKER_STALL = "worker stall"
POWER_CUT = "power cut"
BURNS = "burns down"

BY_USERS = (CANCEL, REQUEUE, CANCEL_TASK, REQUEUE_TASK, DRAIN, RESUME, ASK)
FAULTS = (
    HUB_CRASH,
    HUB_STALL,
    WALL_JUMP,
    CUT,
    CUT_UP,
    CUT_DOWN,
    WORKER_KILLED,
    WORKER_STALL,
    POWER_CUT,
    BURNS,
)

AT_REST, BEFORE_COMMIT, AFTER_COMMIT, AMONG_EFFECTS = range(4)
"""At which point of a batch the hub dies: what was stepped and not committed is lost, what was committed is not, though
nobody may have been told."""


STEADY_S = 6.0
"""Both ways, and a heartbeat's wait for the next: less than the silence after which contact is lost."""


class Deed(msgspec.Struct, omit_defaults=True):
    at: float
    what: str
    on: str = ""
    """A machine's name, or a job's id."""
    seconds: float = 0.0
    detail: int = 0
    """Of a crash: at which point. Of one task: its index. Of what burns down: whether the hub's end stays open."""


class PlannedMachine(msgspec.Struct, omit_defaults=True):
    name: str
    offer: Capabilities
    slots: int = 1
    ahead: int = 0
    """How many tasks it takes beyond its room."""
    real: bool = False
    """Its side of the protocol is the worker's own core."""
    queue: str = ""
    """Of a real one: somebody else's queue, in words, through which its tasks go before they begin."""
    claims: bool = False
    """It holds no connection."""
    plain: bool = False
    """It speaks version 1 of the protocol, without extensions."""
    beat_s: float = 30.0
    """Of one that only claims: how often it says that it lives."""
    stubborn: bool = False
    """It only claims, runs on whatever the hub says, and wants its result taken whenever it is."""


class PlannedJob(msgspec.Struct, omit_defaults=True):
    at: float
    spec: JobSpec
    duration_s: float


class Weather(msgspec.Struct, omit_defaults=True):
    """Chances per message."""

    lose: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    slow_s: float = 0.0
    """How late a slow one may be."""
    in_order: bool = False
    """What is said on one connection arrives in the order in which it was said, late or not at all. Without that much
    nobody can tell an old account from a new one, and a task that is taken for lost runs twice."""


class Plan(msgspec.Struct, omit_defaults=True, kw_only=True):
    seed: int
    """Of the little that is left to chance: delays, failures, how soon somebody stops or comes back."""
    horizon_s: float
    """Nothing is done to the world after that, and everything must end."""
    weather: Weather = msgspec.field(default_factory=Weather)
    machines: list[PlannedMachine] = []
    jobs: list[PlannedJob] = []
    deeds: list[Deed] = []
    quota: Quota = Quota()
    hold_after_s: float = HOLD_AFTER_S
    claim_lease_s: float = 0.0
    """0: the usual lease."""
    batch: int = 0
    """How many events the hub takes at once; 0: all that have come."""
    failing: float = 0.1
    """How many of the processes fail."""

    @property
    def is_calm(self) -> bool:
        """Nothing fails in it."""
        weather = self.weather
        return not (weather.lose or weather.duplicate or weather.slow or self.kinds() & set(FAULTS))

    @property
    def keeps_contact(self) -> bool:
        """Nothing fails in it but the hub's own attention. Those that only claim know nothing of that: whoever asked
        then has stopped waiting for an answer."""
        claims = any(machine.claims for machine in self.machines)
        attentive = msgspec.structs.replace(self, deeds=[deed for deed in self.deeds if deed.what != HUB_STALL])
        return self.is_calm or (attentive.is_calm and not claims)

    @property
    def is_steady(self) -> bool:
        """Messages are late, and never so late that contact is lost."""
        weather = self.weather
        in_time = not weather.slow or weather.slow_s <= STEADY_S
        return weather.in_order and in_time and not self.kinds() & set(FAULTS)

    @property
    def loses_nothing(self) -> bool:
        """Nobody is ever out of touch for so long that a task is taken for lost. What is asked for over HTTP is in
        nobody's order: an answer that got lost, or the one to a question that came twice, is a claim that nobody
        has."""
        heard_once = not (self.weather.lose or self.weather.duplicate)
        claims = any(machine.claims for machine in self.machines)
        return self.keeps_contact or (self.is_steady and (heard_once or not claims))

    def kinds(self) -> set[str]:
        return {deed.what for deed in self.deeds}

    def worst_delay_s(self) -> float:
        """How long after its horizon something of it may still be under way."""
        late = self.weather.slow_s if self.weather.slow else 0.0
        faults = [deed.seconds for deed in self.deeds if deed.what in FAULTS and deed.what != WALL_JUMP]
        return late + max(faults, default=0.0)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Plan)


def encoded(plan: Plan) -> bytes:
    return msgspec.json.format(_encoder.encode(plan), indent=1)


def decoded(text: bytes) -> Plan:
    return _decoder.decode(text)
