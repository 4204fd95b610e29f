"""kill -9, at random moments under load: of the hub, of workers, of supervisors."""

import random
import signal
import time

from chaos import program
from chaos.fleet import nap
from chaos.judge import Allowed
from chaos.load import Terms
from chaos.trial import FleetUnderLoad, Ground, Trial, fleet_under_load

WORKERS = ("ash", "birch", "cedar")
KILLS = 40
WORKS_S = (0.02, 0.7)
"""Between two kills."""
TELL_EVERY = 50


def hub_and_workers(ground: Ground, trial: Trial) -> None:
    """Both in one fleet: some fall together, some into each other's recovery. Nothing is lost, nothing runs again."""
    kills = ground.kills or ground.times(KILLS)
    draw = ground.draw()
    victims = ["hub"] * kills + [draw.choice(WORKERS) for _ in range(kills)]
    draw.shuffle(victims)
    most_s = 15.0 * min(1.0, ground.scale)
    terms = Terms(per_s=20.0, most_live=40, long_s=(most_s / 4, most_s))
    with fleet_under_load(ground, trial, WORKERS, times=program.IMPATIENT, terms=terms) as here:
        begun = time.monotonic()
        for number, victim in enumerate(victims, 1):
            nap(draw.uniform(*WORKS_S))
            _kill(here, victim, draw)
            trial.count("kill -9 of the hub" if victim == "hub" else "kill -9 of a worker")
            if number % TELL_EVERY == 0:
                each_s = (time.monotonic() - begun) / number
                left = f"{each_s * (len(victims) - number) / 60:.0f} min left"
                ground.tell(f"{number} of {len(victims)} kills, {len(here.load.acknowledged):,} jobs, {left}")


def _kill(here: FleetUnderLoad, victim: str, draw: random.Random) -> None:
    here.fleet.kill(victim)
    if draw.random() < 0.2:
        nap(draw.uniform(0, 1.0))  # tasks end meanwhile, and nobody hears of it
    here.fleet.start_again(victim)


def supervisors(ground: Ground, trial: Trial) -> None:
    """With its worker or alone. Its tasks go with it, and are run again: never two of one at once."""
    draw = ground.draw()
    terms = Terms(per_s=5.0, most_live=30)
    allowed = Allowed(dies=True)
    with fleet_under_load(ground, trial, WORKERS, times=program.IMPATIENT, terms=terms, allowed=allowed) as here:
        for _ in range(ground.times(10)):
            nap(draw.uniform(0.5, 2.0))
            victim, together = draw.choice(WORKERS), draw.random() < 0.5
            for supervisor in here.fleet.supervisors(victim):
                supervisor.send_signal(signal.SIGKILL)
                trial.count("kill -9 of a supervisor")
            if together:
                here.fleet.kill(victim)
                trial.count("kill -9 of its worker with it")
                here.fleet.start_again(victim)
            else:
                here.fleet.attend(1.0)
        here.fleet.attend(5.0)
