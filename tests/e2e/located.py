"""`ostler` that first writes into its log where its code is: a test of two versions sees which one a process runs.

The module `ostler.cli` is the program in every version; `python -m ostler` is not.
"""

import os

import ostler
from ostler.cli.main import main

if __name__ == "__main__":
    print(f"ostler is in {os.path.realpath(os.path.dirname(ostler.__file__))}", flush=True)
    main()
