"""What the Python client raises beside what the hub answered."""

from ostler.domain.advice.entry import PYTHON, Advice

EXCEPTIONS = (
    Advice(
        "hub-unreachable",
        PYTHON,
        "HubUnreachable",
        "No hub answered at the address, or what answered is none; with several hubs, none of them leads.",
        "Start it, or correct the address given to `connect` or `OSTLER_HUB`. A call that may be repeated has been "
        "repeated already, for as long as the client's patience lasts.",
    ),
    Advice(
        "hub-failed",
        PYTHON,
        "HubFailed",
        "The hub answered with something that no request can cause.",
        "Its operator looks at the hub's own log at that time.",
    ),
    Advice(
        "job-failed",
        PYTHON,
        "JobFailed",
        "The job ended without success. The exception has the job (`document`), its `exit_code` and the end of its "
        "`log`.",
        "Read the log; `ostler why ID` says the same on the command line. `max_retries` runs a job again that may "
        "fail by chance.",
    ),
    Advice(
        "job-cancelled",
        PYTHON,
        "JobCancelled",
        "Somebody cancelled the job, or one that it depends on did not succeed.",
        "`ostler why ID` says which; `ostler requeue ID` runs it again.",
    ),
    Advice(
        "job-unschedulable",
        PYTHON,
        "JobUnschedulable",
        "No worker had room for the job before its `scheduling_timeout_seconds` ran out.",
        "The message says what was missing, and on which machine. Ask for less, wait longer, or add a machine: "
        "`fleet.whatif()` tells which of these would help.",
    ),
    Advice(
        "remote-error",
        PYTHON,
        "RemoteError",
        "The function raised an exception that cannot be brought here as an object, for instance of a class that "
        "this process does not have.",
        "`type_name` and `traceback` have what it was, as text.",
    ),
    Advice(
        "timed-out",
        PYTHON,
        "WaitTimeout",
        "The time given for waiting is over; the job goes on.",
        "Wait again with the same job: nothing was lost. It is a `TimeoutError` too.",
    ),
    Advice(
        "wrong-python",
        PYTHON,
        "WrongPython",
        "The value was pickled by another minor version of Python than the one that reads it.",
        "Open it with that version; or let functions return what every version reads, such as JSON or a file in "
        "`$OSTLER_OUT`.",
    ),
    Advice(
        "broken-off",
        PYTHON,
        "Broken",
        "The connection to a command that was started beside a task (`ostler exec`) ended before the command did.",
        "Look whether the task still runs (`ostler show ID`) and start it again.",
    ),
    Advice(
        "damaged",
        PYTHON,
        "Damaged",
        "What was fetched is not what its name says: the bytes were changed on the way or on the hub's disk.",
        "Fetch it again. If it stays so, `ostler artifacts verify ID` asks the hub, and docs/artifacts.md tells "
        "how to heal it.",
    ),
    Advice(
        "service-refused",
        PYTHON,
        "Refused",
        "systemd, launchd or Windows did not take the service that `--install` or `ostler join` described to it.",
        "The message has what it said. Without a service manager, start `ostler worker` in the way that the "
        "machine starts its other programs.",
    ),
)
