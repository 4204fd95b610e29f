"""Signals of child processes, skipped tests by reason, and `--must-run PATH` for suites that may not be skipped."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
LONG_SUITES = (
    "bridge/test_batch_runtime.py",
    "bridge/test_slurm.py",
    "browser",
    "chaos",
    "cli/test_follow_restart.py",
    "cli/test_top.py",
    "cli/test_up.py",
    "crash",
    "e2e",
    "enrol/test_join.py",
    "examples",
    "gateway/e2e",
    "store/test_s3_hub.py",
    "store/test_s3_worker.py",
    "test_wheel.py",
    "tls/test_canaries.py",
    "tls/test_two_hubs.py",
    "tls/test_with_hub.py",
)
"""Journeys over real processes, marked `long`: `make test` leaves them out, `make test-all` runs them."""
SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)


@pytest.fixture(scope="session", autouse=True)
def default_signals_for_children() -> Iterator[None]:
    """Every process that a test starts has the default action for these signals.

    `nohup` and a shell's `&` start the suite with SIGHUP and SIGINT ignored. A child inherits an ignored signal over
    exec, so that a command under test could not be interrupted. A caught signal is reset to its default over exec:
    with a handler that does nothing, pytest goes on ignoring the signal and its children do not. As a fixture it
    applies where tests run: the processes of xdist inherit the ignored signals first.
    """
    ignored = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--must-run",
        action="append",
        default=[],
        metavar="PATH",
        help="fail if a test below PATH is skipped; may be given several times",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long_suites = [ROOT / suite for suite in LONG_SUITES]
    assert all(suite.exists() for suite in long_suites), "a suite of LONG_SUITES has another name now"
    long_files = {path for path in {item.path for item in items} if _is_below(path, long_suites)}
    for item in items:
        if item.path in long_files:
            item.add_marker(pytest.mark.long)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and _forbidden_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reasons = Counter(_reason(report) for report in _skipped(config))
    if reasons:
        terminalreporter.section("skipped, by reason")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:5d}  {reason}")
    forbidden = _forbidden_skips(config)
    if forbidden:
        terminalreporter.section("skipped, but --must-run", red=True)
        for report in forbidden:
            terminalreporter.line(f"{report.nodeid}: {_reason(report)}")


def _skipped(config: pytest.Config) -> list[pytest.TestReport]:
    """The reports of skipped tests; a process of pytest-xdist that runs tests for another has no terminal and no list."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return reporter.stats.get("skipped", []) if reporter else []


def _reason(report: pytest.TestReport) -> str:
    assert isinstance(report.longrepr, tuple)
    return report.longrepr[2].removeprefix("Skipped: ")


def _forbidden_skips(config: pytest.Config) -> list[pytest.TestReport]:
    paths = [Path(os.path.abspath(path)) for path in config.getoption("--must-run")]
    return [report for report in _skipped(config) if _is_below(config.rootpath / report.fspath, paths)]


def _is_below(file: Path, paths: list[Path]) -> bool:
    return any(path == file or path in file.parents for path in paths)
