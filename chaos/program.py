"""`ostler` with some of its times made short, so that faults can straddle them within minutes.

CHAOS_TIMES=impatient: only the pauses before a worker tries again, and before one that lost its tasks is trusted again:
a hub that is killed every second would else be away most of the time. CHAOS_TIMES=hurried: the silence, the graces and
the leases as well, in their proportions.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import ostler.core.attempts
import ostler.domain.job
import ostler.worker.connection
import ostler.worker.orders
from ostler.cli.main import main

TIMES = "CHAOS_TIMES"
PLAIN, IMPATIENT, HURRIED = "plain", "impatient", "hurried"
LONGEST_PAUSE_S, COOLDOWN_S = 0.5, 0.1
STOP_ALONE_GRACE_S, STOPS_EARLIER_S = 10.0, 4.0


def hurry(times: str) -> None:
    if times == HURRIED:
        from tests.e2e.hurried import hurry as hurry_all

        hurry_all()
        ostler.domain.job.STOP_ALONE_GRACE_S = STOP_ALONE_GRACE_S
        vars(ostler.worker.orders).update(STOP_ALONE_GRACE_S=STOP_ALONE_GRACE_S, STOPS_EARLIER_S=STOPS_EARLIER_S)
    if times != PLAIN:
        ostler.core.attempts.COOLDOWN_S = COOLDOWN_S
        ostler.worker.connection.LONGEST_PAUSE_S = LONGEST_PAUSE_S


if __name__ == "__main__":
    hurry(os.environ.get(TIMES, PLAIN))
    main()
