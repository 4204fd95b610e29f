"""What networks do: packets that vanish in one direction or both, that come late, and ends that know nothing of it."""

import time

import psutil
from tests.e2e.hurried import SILENCE_S
from tests.process_fleet import until, usable

from chaos import program
from chaos.fleet import nap
from chaos.judge import Allowed
from chaos.load import Terms
from chaos.pauses import STRADDLING
from chaos.trial import FleetUnderLoad, Ground, Trial, fleet_under_load
from chaos.wire import WAYS

NEAR, FAR = ("ash",), ("yonder",)
ROUNDS = 3
LONGEST_CUT_S = 14.0
"""Beyond the silence, every grace that is made short, and the lease of what must not run twice at once."""
BACK_S = 40.0
CUTS = {"to the hub": ("up",), "to the worker": ("down",), "both ways": WAYS}
MILD, HARSH = ((0.05, 0.01), (0.25, 0.05)), ((2.0, 0.3),)
"""Seconds of delay, and the part of all packets that is lost, in each direction."""
SLOW_FOR_S = 20.0


def cuts(ground: Ground, trial: Trial) -> None:
    """A worker behind a wire on which packets vanish without a word: those to the hub, those from it, all; for less and
    for longer than the silence, the grace and the lease."""
    draw = ground.draw()
    with fleet_under_load(ground, trial, NEAR, FAR, terms=STRADDLING, allowed=Allowed(runs_again=True)) as here:
        rounds = [(name, draw.uniform(1.0, LONGEST_CUT_S)) for name in CUTS for _ in range(ground.times(ROUNDS) - 1)]
        rounds += [(name, LONGEST_CUT_S) for name in CUTS]
        draw.shuffle(rounds)
        for name, seconds in rounds:
            nap(draw.uniform(0.3, 1.5))
            ground.tell(f"{name}, for {seconds:.1f} s")
            here.wire.cut(*CUTS[name])
            trial.count(f"cut {name}")
            nap(seconds)
            here.wire.heal()
            _back(here)
        trial.figures["packets that vanished"] = _dropped(here)


def slow(ground: Ground, trial: Trial) -> None:
    """Packets come late and some not at all, with the times that the protocol has everywhere: a worker is not taken for
    gone by a delay of a quarter of a second and one lost packet in twenty; and by whatever is worse nothing is lost."""
    terms = Terms(per_s=6.0, most_live=30, long_s=(2.0, 12.0))
    with fleet_under_load(ground, trial, NEAR, FAR, times=program.PLAIN, terms=terms) as here:
        gone = []
        for delay_s, loss in MILD * ground.times(1) + HARSH * ground.times(1):
            ground.tell(f"{delay_s:g} s each way, {loss:.0%} lost")
            here.wire.slow(delay_s, loss)
            trial.count(f"{delay_s * 1000:.0f} ms late and {loss:.0%} lost, each way")
            over_at = time.monotonic() + SLOW_FOR_S
            while time.monotonic() < over_at:
                if not usable(here.fleet.worker(FAR[0])) and (delay_s, loss) in MILD:
                    gone.append(f"offline with {delay_s:g} s of delay and {loss:.0%} of loss")
                nap(0.3)
            here.wire.heal()
            _back(here)
        trial.promise("a slow network does not make a worker gone", len(MILD), sorted(set(gone)))
        trial.figures["packets that vanished"] = _dropped(here)


def half_open(ground: Ground, trial: Trial) -> None:
    """One end of a connection dies while the wire is cut, so that the other is never told: the hub, the worker, the
    worker for longer than the silence. Nobody waits for ever on a connection that is none."""
    draw = ground.draw()
    left: list[str] = []
    with fleet_under_load(ground, trial, NEAR, FAR, terms=STRADDLING, allowed=Allowed(runs_again=True)) as here:
        for number in range(ground.times(6)):
            nap(draw.uniform(0.3, 1.5))
            here.wire.cut(*WAYS)
            victim = ("hub", FAR[0], FAR[0])[number % 3]
            here.fleet.kill(victim)
            trial.count(f"{'the hub' if victim == 'hub' else 'a worker'} dies behind a cut")
            if number % 3 == 2:
                left += _until_closed(here)
            here.fleet.start_again(victim)
            here.wire.heal()
            _back(here)
    trial.promise("the hub closes a connection whose other end is silent", ground.times(6) // 3, left)


def _until_closed(here: FleetUnderLoad) -> list[str]:
    """What is still open to the far end well after the silence."""
    deadline = time.monotonic() + SILENCE_S + 10.0
    while (found := _connections(here)) and time.monotonic() < deadline:
        nap(0.2)
    return found


def _connections(here: FleetUnderLoad) -> list[str]:
    hub = psutil.Process(here.fleet.processes["hub"].pid)
    return [f"{one.raddr} {one.status}" for one in hub.net_connections("tcp") if one.raddr[:1] == (here.wire.far,)]


def _back(here: FleetUnderLoad) -> None:
    """The worker is there again, as the hub sees it."""
    until(lambda: usable(here.fleet.worker(FAR[0])), f"{FAR[0]} is back: {here.fleet.log_of(FAR[0])}", BACK_S)


def _dropped(here: FleetUnderLoad) -> int:
    return sum(way["dropped"] for way in here.wire.counts().values())
