"""`ostler` whose hub says so often that it leads that a test need not wait to see what comes of it."""

import sys

import ostler.hub.leading
from ostler.cli.main import main

if __name__ == "__main__":
    ostler.hub.leading.RENEW_S = 0.1
    sys.exit(main())
