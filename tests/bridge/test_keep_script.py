"""The script that keeps an attempt on a node, run by a real shell."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from ostler.bridge.script import KEEP, RUN, TERMINATED, keep_script, run_script

WAIT_S = 60.0
STARTS, LONGEST_DELAY_S = 200, 0.004


def _kept(job: Path) -> subprocess.Popen[bytes]:
    job.mkdir()
    (job / KEEP).write_text(keep_script(str(job), str(job / "log")))
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    (job / RUN).write_text(run_script(["sleep", "60"], env, str(job), str(job), with_devices=False))
    return subprocess.Popen(["/bin/sh", str(job / KEEP)], start_new_session=True, stderr=subprocess.DEVNULL)


def test_a_signal_to_the_job_ends_the_attempt_at_whatever_moment_of_its_start_it_comes(tmp_path: Path) -> None:
    kept = []
    try:
        for number in range(STARTS):
            kept.append(_kept(tmp_path / str(number)))
            time.sleep(LONGEST_DELAY_S * number / STARTS)  # there is no event: it is the moments between that count
            with suppress(ProcessLookupError):
                os.killpg(kept[-1].pid, signal.SIGTERM)
        ends = {process.wait(WAIT_S) for process in kept}
    finally:
        for process in kept:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert ends <= {TERMINATED, -signal.SIGTERM}
