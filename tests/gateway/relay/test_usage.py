"""Tokens, from the last bytes of an answer."""

import pytest

from ostler.gateway.relay.usage import tokens


@pytest.mark.parametrize(
    ("tail", "counted"),
    [
        (b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}', (3, 5)),
        (b'data: {"usage": {"completion_tokens": 5, "prompt_tokens": 3}}\n\ndata: [DONE]\n\n', (3, 5)),
        (
            b'data: {"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\ndata: {"usage":null}\n\ndata: [DONE]\n\n',
            (3, 5),
        ),
        (b'{"usage":{"input_tokens":3,"output_tokens":5,"output_tokens_details":{"reasoning_tokens":9}}}', (3, 5)),
        (b'event: message_delta\ndata: {"delta":{},"usage":{"output_tokens":5}}\n\n', (0, 5)),
        (b'{"embedding":[0.1],"usage":{"prompt_tokens":3,"total_tokens":3}}', (3, 0)),
        (b'{"timings":{"prompt_n":3,"predicted_n":5}}', (3, 5)),
        (b'ens":2}}\n\ndata: {"usage":{"prompt_tokens":3,"completion_tokens":5}}', (3, 5)),
        (b'{"content":"\\"usage\\": many","usage":null}', (0, 0)),
        (b'{"usage":{"prompt_tokens":"three"}}', (0, 0)),
        (b'{"usage":', (0, 0)),
        (b"", (0, 0)),
        (b"\xff" * 4096, (0, 0)),
    ],
)
def test_the_last_usage_in_the_tail_counts(tail: bytes, counted: tuple[int, int]) -> None:
    assert tokens(tail) == counted
