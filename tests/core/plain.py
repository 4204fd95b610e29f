"""Tests that only the plain core can pass: the compiled one does not let itself be told what to call, and copies small
numbers instead of sharing them (`make test-compiled`)."""

import pytest

from ostler.core import fleet

only_plain = pytest.mark.skipif(not fleet.__file__.endswith(".py"), reason="of the plain core alone")
