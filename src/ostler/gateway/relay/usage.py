"""How many tokens an answer counts, from the last of its bytes."""

import re

TAIL_BYTES = 4096
"""What is kept of an answer for this, and all that is."""
# OpenAI's words, those of its Responses and of Anthropic's messages, and llama.cpp's `timings`.
_PROMPT = re.compile(rb'"(?:prompt_tokens|input_tokens|prompt_n)"\s*:\s*(\d{1,15})')
_COMPLETION = re.compile(rb'"(?:completion_tokens|output_tokens|predicted_n)"\s*:\s*(\d{1,15})')
# Two spellings of nearly all answers, for which one look is enough.
_USUAL = re.compile(
    rb'"usage"\s*:\s*\{\s*"prompt_tokens"\s*:\s*(\d{1,15})\s*,\s*'
    rb'(?:"total_tokens"\s*:\s*\d{1,15}\s*,\s*)?"completion_tokens"\s*:\s*(\d{1,15})'
)
_NONE = re.compile(rb'"usage"\s*:\s*null')


def tokens(tail: bytes) -> tuple[int, int]:
    """Of the prompt and of the completion; 0 where the answer does not say."""
    at = tail.rfind(b'"usage"')
    if at >= 0 and (usual := _USUAL.match(tail, at)) is not None:
        return int(usual[1]), int(usual[2])
    while at >= 0 and _NONE.match(tail, at):
        at = tail.rfind(b'"usage"', 0, at)
    if at < 0:
        at = tail.rfind(b'"timings"')
    if at < 0:
        return 0, 0
    prompt, completion = _PROMPT.search(tail, at), _COMPLETION.search(tail, at)
    return int(prompt[1]) if prompt else 0, int(completion[1]) if completion else 0
