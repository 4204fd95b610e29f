"""`ostler` whose hub says so often that it leads that a test need not wait to see what comes of it."""

import sys

import ostler.hub.ledgers
from ostler.cli.main import main

if __name__ == "__main__":
    ostler.hub.ledgers.RENEW_S = 0.1
    sys.exit(main())
