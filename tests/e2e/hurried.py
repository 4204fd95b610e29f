"""`ostler` with the minutes of its protocol made seconds, in the same proportions: a test cannot wait for them."""

import functools
import sys

import ostler.core.attempts
import ostler.core.deadlines
import ostler.core.workers
import ostler.domain.job
import ostler.hub.loop
import ostler.worker.connection
import ostler.worker.main
from ostler.cli.main import main

BEAT_S = 0.3
SILENCE_S = 2.5
GRACE_S = 2.5


def hurry() -> None:
    ostler.core.workers.SILENCE_S = ostler.core.deadlines.SILENCE_S = SILENCE_S
    ostler.domain.job.TIER_GRACE_S["data_processing"] = GRACE_S
    ostler.hub.loop.AWAY_S = 1.5
    ostler.core.attempts.ACCEPT_WITHIN_S = 2.5
    ostler.core.attempts.COOLDOWN_S = 0.1
    ostler.core.attempts.STOP_GRACE_S = 1.0
    ostler.worker.connection.CONNECT_S = 0.8
    ostler.worker.connection.LONGEST_PAUSE_S = 0.5
    ostler.worker.main.Place = functools.partial(ostler.worker.main.Place, heartbeat_s=BEAT_S)
    ostler.worker.main.Connection = functools.partial(ostler.worker.main.Connection, silence_s=SILENCE_S)


if __name__ == "__main__":
    hurry()
    sys.exit(main())
