"""Tells one fact, starts a child, and never ends by itself."""

import subprocess
import sys

from benchmarks.peers.measure import tell

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
tell(version="1", setup="as it is")
tell(work="W1", way="", count=10, per_s=100.0, child=child.pid)
while True:
    try:
        child.wait()
    except KeyboardInterrupt:
        continue
