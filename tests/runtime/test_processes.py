"""What processes there are, as /proc and as `ps` tell it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ostler.runtime.processes import ProcessTable, ProcTable, PsTable

TABLES = [
    pytest.param(ProcTable, marks=pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="no /proc here")),
    pytest.param(
        PsTable, marks=pytest.mark.skipif(not shutil.which("ps"), reason="ps is missing: apt-get install procps")
    ),
]


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ProcessTable:
    # This process is not to adopt what other tests leave.
    monkeypatch.setattr("ostler.runtime.processes._become_subreaper", lambda: True)
    made: ProcessTable = request.param()
    return made


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Its name has everything that makes such a table hard to read; its environment names an attempt."""
    script = "import os, sys; open('/proc/self/comm', 'w').write(') R 1 (x)'); print(flush=True); sys.stdin.read()"
    env = {**os.environ, "OSTLER_ATTEMPT": "of-the-table-test"}
    with subprocess.Popen(
        [sys.executable, "-SsE", "-c", script],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def test_a_child_is_listed_with_its_parent_session_group_and_start(
    table: ProcessTable, child: subprocess.Popen[bytes]
) -> None:
    process = table.all()[child.pid]
    assert process == table.one(child.pid)
    assert (process.parent, process.session, process.group, process.zombie) == (
        os.getpid(),
        child.pid,
        child.pid,
        False,
    )
    assert abs(process.start - table.clock()) <= 10 * table.second
    assert child.pid in table.children()


def test_the_attempt_is_read_from_the_environment(table: ProcessTable, child: subprocess.Popen[bytes]) -> None:
    assert table.attempt_in_environment(child.pid) == "of-the-table-test"
    assert table.attempts_in_environments()[child.pid] == "of-the-table-test"


def test_a_signal_reaches_exactly_the_process_meant(table: ProcessTable, child: subprocess.Popen[bytes]) -> None:
    process = table.one(child.pid)
    assert process is not None
    if isinstance(table, ProcTable):
        assert not table.send(process._replace(start=process.start - 1), signal.SIGKILL), "another had this pid before"
    assert table.send(process, signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM
    assert not table.send(process, signal.SIGTERM)


def test_a_zombie_is_told_from_the_living(table: ProcessTable, child: subprocess.Popen[bytes]) -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    process = table.one(child.pid)
    assert process is not None
    assert process.zombie


def test_the_places_of_a_process_are_its_working_directory_and_its_output() -> None:
    if not os.path.exists("/proc/self/stat"):
        pytest.skip("no /proc here")
    assert os.getcwd() in ProcTable.places(ProcTable.__new__(ProcTable), os.getpid())
