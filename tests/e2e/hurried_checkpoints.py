"""`ostler` as in `hurried.py`, whose workers also look at checkpoints every moment."""

import sys

from hurried import hurry

import ostler.worker.carrying
from ostler.cli.main import main

if __name__ == "__main__":
    hurry()
    ostler.worker.carrying.LOOK_S = 0.2
    ostler.worker.carrying.STILL_S = 0.1
    sys.exit(main())
