"""The hub of the protocol tests: real sockets, real SQLite, a manual clock."""

from tests.protocol.conftest import api, hub, pytest_runtest_makereport

__all__ = ["api", "hub", "pytest_runtest_makereport"]
