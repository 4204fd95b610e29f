"""The states of a job, from the table that the hub moves by."""

from docs.generate.markdown import code, page, table

from ostler.domain import states

MEANING = {
    states.PENDING: "waits for room, for other jobs, or to be run again",
    states.ASSIGNED: "a worker was chosen and its devices are booked; it has not said yet that it took it",
    states.RUNNING: "its process runs",
    states.ORPHANED: "its worker went silent; it may well be running, and counts as such until its grace is over",
    states.SUCCEEDED: "ended well",
    states.FAILED: "ended badly, and no retry is left",
    states.CANCELLED: "somebody cancelled it, or one that it depends on did not succeed",
    states.UNSCHEDULABLE: "was not placed before its scheduling timeout ran out",
}
INTRO = """The words are the same in the code, the ledger, the HTTP API and on the command line. `status` in a job's document is the
training API's spelling of it.

![The states and the moves between them](../images/states.svg)
"""
OUTRO = """An array's job is `running` while one of its tasks has begun, and ends when all have. What is decided (the state) and whether the
processes are gone (the room that they hold) are two things: a cancelled job is `cancelled` at once, and its GPUs are free when its end was
seen.
"""


def job_states() -> str:
    rows = [
        (code(state), code(states.STATUS[state]), "has ended" if state in states.TERMINAL else "lives", MEANING[state])
        for state in states.STATES
    ]
    moves = [(code(old), code(new), why) for old, news in states.MOVES.items() for new, why in news.items()]
    return page(
        "States",
        INTRO,
        table(("state", "status", "", "meaning"), rows),
        "## Moves\n",
        table(("from", "to", "when"), moves),
        OUTRO,
    )
