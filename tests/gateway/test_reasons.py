"""What the gateway says of the end of a model's process: never a line of its log."""

import pytest

from ostler.hub.gateway.processes import _without_log


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("exit code 1: the key is hf_secret", "exit code 1"),
        ("exit code 137 (SIGKILL)", "exit code 137 (SIGKILL)"),
        ("out of GPU memory (exit code 1): hf_secret", "out of GPU memory (exit code 1)"),
        (
            "the worker's disk is full; it ended with exit code 1: x",
            "the worker's disk is full; it ended with exit code 1",
        ),
        ("there is no program 'llama'", "there is no program 'llama'"),
        ("exit code 1: exit code 2: hf_secret", "exit code 1"),
    ],
)
def test_the_last_line_of_a_log_is_cut_from_the_reason_of_an_end(reason: str, shown: str) -> None:
    assert _without_log(reason) == shown
