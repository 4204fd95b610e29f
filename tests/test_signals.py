"""A process that a test starts can be interrupted, even where the suite itself cannot."""

import signal
import subprocess
import sys

from tests.conftest import SIGNALS

IGNORED = f"""
import signal
print([number for number in {[int(number) for number in SIGNALS]} if signal.getsignal(number) is signal.SIG_IGN])
"""


def test_a_child_ignores_no_signal() -> None:
    assert all(signal.getsignal(number) is not signal.SIG_IGN for number in SIGNALS)
    done = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_child_ignores_no_signal_in_a_suite_that_was_started_with_them_ignored() -> None:
    one = f"{__file__}::{test_a_child_ignores_no_signal.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", one]
    ignoring = ["sh", "-c", 'trap "" INT HUP QUIT TERM; exec "$@"', "sh", *command]
    done = subprocess.run(ignoring, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
