"""What the exit codes of the command line stand for."""

from ostler.domain.advice.entry import EXIT, Advice

EXITS = (
    Advice(
        "exit-0",
        EXIT,
        "0",
        "Done.",
        "Nothing: it worked.",
    ),
    Advice(
        "exit-1",
        EXIT,
        "1",
        "The job, or the check that was asked for, has failed. `ostler run` ends with the job's own exit code instead.",
        "`ostler why ID` says what ended the job, with the end of its log; `ostler logs ID` has all of it.",
    ),
    Advice(
        "exit-2",
        EXIT,
        "2",
        "Wrong usage: an unknown option, a value that cannot be, or something that conflicts with what is there.",
        "The sentence names the option; `--help` after the command lists them all.",
    ),
    Advice(
        "exit-3",
        EXIT,
        "3",
        "The hub cannot be reached.",
        "Start one with `ostler up`, or correct `--hub` or `OSTLER_HUB`; `ostler config show` says which address "
        "is used and where it came from.",
    ),
    Advice(
        "exit-4",
        EXIT,
        "4",
        "Not allowed: no token, a token of too small a role, or a quota that is used up.",
        "See `not-authenticated`, `not-allowed` and `quota-exceeded`: the sentence says which it was.",
    ),
    Advice(
        "exit-5",
        EXIT,
        "5",
        "There is no such thing.",
        "See `no-such-thing`.",
    ),
    Advice(
        "exit-6",
        EXIT,
        "6",
        "The time given with `--timeout` was over before the job had ended. The job goes on.",
        "Wait again, or look at it with `ostler why ID`.",
    ),
    Advice(
        "exit-130",
        EXIT,
        "130",
        "Interrupted with Ctrl-C. What was submitted goes on, unless cancelling it was asked for and agreed to.",
        "`ostler jobs --live` shows what is still there; `ostler cancel ID` ends it.",
    ),
)
