"""The errors, from the advice that the hub serves and `ostler explain` prints."""

from docs.generate.markdown import code, page

from ostler.domain import advice
from ostler.domain.advice.entry import ANSWER, EXIT, GATEWAY, PYTHON, REASON

INTRO = """Every error is one sentence that says what was wrong and what to do. Here is the paragraph behind each. A hub serves them at
`/docs/errors/NAME`, which is the `type` of its problem documents; in a terminal:

    ostler explain 409
    ostler explain JobFailed
    ostler explain exit code 137 '(SIGKILL)'
"""
HEADS = {
    ANSWER: ("Answers of the hub", "By `type`, status and title."),
    EXIT: ("Exit codes", "Of every `ostler` command; `ostler run` ends with the job's own."),
    PYTHON: (
        "Exceptions in Python",
        "Beside these the client raises what the hub answered: `BadInput`, `NotFound`, and so on.",
    ),
    GATEWAY: ("Answers of the gateway", "By `error.code`, in the shape that OpenAI's clients know."),
    REASON: (
        "Why jobs end",
        "By the `reason` of an ended job, as `ostler why` tells it, and what is found in it (a regular expression). The first that fits counts.",
    ),
}


def errors() -> str:
    parts = [INTRO]
    for kind, (title, about) in HEADS.items():
        parts.append(f"## {title}\n\n{about}\n")
        for one in advice.ALL.values():
            if one.kind == kind:
                before, after = ("", f" Known by {code(one.sign)}.") if kind == REASON else (f"{code(one.sign)} ", "")
                parts.append(f"### {one.name}\n\n{before}{one.happened}{after}\n\n**What to do:** {one.act}\n")
    return page("Errors", *parts)
