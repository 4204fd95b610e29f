"""`ostler` whose ledger lies on a disk that fails for as long as the file $BROKEN is there, and stands still for as long
as $STUCK is. How full its disk is it sees at once."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import apsw
from tests.ledger.faulty import NAME, Disk, Fault

import ostler.hub.disk
from ostler.cli.main import main
from ostler.ledger import sqlite_file, sqlite_sound

if __name__ == "__main__":
    fault = Fault()

    def meets(number: int) -> None:
        if os.path.exists(os.environ["BROKEN"]):
            raise apsw.IOError("planted")
        while os.path.exists(os.environ["STUCK"]):
            time.sleep(0.01)

    fault.meets = meets
    ostler.hub.disk.LOOK_S = 0.1
    disk = Disk(fault)
    sqlite_sound.verifying = sqlite_file.verifying = lambda: NAME  # type: ignore[assignment]
    sys.exit(main())
