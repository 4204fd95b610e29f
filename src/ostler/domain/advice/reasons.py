"""Why jobs end otherwise than well, by what their reasons say. The first that is found in a reason counts."""

from ostler.domain.advice.entry import REASON, Advice

REASONS = (
    Advice(
        "ended-by-dependency",
        REASON,
        r"depends on .+, which is ",
        "A job that this one was to wait for did not succeed, so it was cancelled without having run.",
        "See what became of the other (`ostler why OTHER`), requeue that one, then this one.",
    ),
    Advice(
        "ended-by-loss",
        REASON,
        r"max_attempts is \d+",
        "The task was lost with its machine more often than `max_attempts` allows: a machine was switched off, was "
        "cut off for longer than the task's grace, or handed it back as broken.",
        "`ostler show ID` lists the attempts and what each was lost by. If it is always the same machine, drain "
        "it; if the task itself brings machines down (memory is the usual cause), ask for what it needs.",
    ),
    Advice(
        "ended-by-budget",
        REASON,
        r"max_runtime|run-time budget",
        "The task used up its run-time budget, all attempts together: `--max-runtime`, or 24 hours where none was "
        "given.",
        "Give it more, at most 168 hours, or let it keep its state in `$OSTLER_CHECKPOINT` and go on in a next job.",
    ),
    Advice(
        "ended-out-of-memory",
        REASON,
        r"out of (GPU )?memory",
        "The task ran out of the GPU's memory, or was killed by the kernel for want of memory.",
        'Ask for more with `--vram` or `--memory`; `auto` asks for what its like has taken. `on_oom = "larger"` in '
        "the spec runs it again on a larger GPU by itself.",
    ),
    Advice(
        "ended-not-started",
        REASON,
        r"^(rank \d+: )?(program |the worker cannot read|snapshot |the secret|the task's folder|.* cannot be the )"
        r"|could not be started",
        "The task could not be started as it is written: its program is not on that worker, a snapshot or a secret "
        "is not to be had, or the spec names what this worker does not know.",
        "Use a program that is there, bring it along with `--snapshot`, or choose machines that have it with "
        "`--where`.",
    ),
    Advice(
        "ended-by-step",
        REASON,
        r"^(rank \d+: )?the (prolog|epilog) failed",
        "The command around the job's own command failed. After a prolog that failed, the command itself was not run.",
        "The log has what the step said. A template in `ostler.toml` may have put it there: `ostler show ID`.",
    ),
    Advice(
        "ended-unhealthy",
        REASON,
        r"liveness failed",
        "The service did not answer its liveness check, so it was stopped; it starts again by itself, unless "
        "`max_retries` says that this is enough.",
        "Look at its log, and at the path and the interval of its `health_check`.",
    ),
    Advice(
        "ended-with-its-outputs",
        REASON,
        r"its outputs|the function's value",
        "The program itself succeeded, but what it left behind could not be packed or was not taken by the hub.",
        "The reason says why: a link or a device among the files, a disk that is full, a value that cannot be "
        "read. Correct that and `ostler requeue ID`.",
    ),
    Advice(
        "ended-in-part",
        REASON,
        r"^of \d+ tasks: ",
        "Some tasks of the array did not succeed.",
        "`ostler show ID`, or the job's page, counts them; `ostler logs ID.N` has the log of one, and `ostler "
        "requeue ID.N` runs it again.",
    ),
    Advice(
        "ended-unplaced",
        REASON,
        r"^not placed within|was placed in time",
        "No worker had room for it within its `--schedule-timeout`. The reason says what was missing, and where.",
        "Ask for less, wait longer, or add a machine. `ostler whatif` tries each of these without doing it.",
    ),
    Advice(
        "ended-by-signal",
        REASON,
        r"exit code \d+ \(SIG",
        "The main process was ended by a signal that Ostler did not send: a crash in native code (SIGSEGV, "
        "SIGABRT), or somebody's `kill`.",
        "The end of the log is the first place to look. SIGKILL is mostly the machine's memory: ask for more with "
        "`--memory`.",
    ),
    Advice(
        "ended-by-itself",
        REASON,
        r"exit code \d+|^failed$|it ended by itself",
        "The program ended with an exit code other than 0; for a service, that it ended at all counts as a failure.",
        "The reason has the last line that it said, and `ostler logs ID` all of it. A file that it did not find may "
        "have stayed with you: `--snapshot DIR` takes a folder along. `--retries N` runs it again that often.",
    ),
    Advice(
        "ended-unseen",
        REASON,
        r"did not come back within|no longer has it|sent no heartbeat|this attempt is not authorised|: stopped$",
        "The task was told to end, or its machine went silent, and nobody saw how it ended.",
        "`ostler show ID` has the attempts; if the machine is back, its log is there too. `ostler requeue ID` runs "
        "it again.",
    ),
    Advice(
        "ended-by-cancel",
        REASON,
        r"cancel|stopped on its worker|it is not wanted any more|unload|evict",
        "Somebody cancelled it; of a model's process: the gateway had no more use for it.",
        "`ostler audit --object job/ID` says who did (operators). `ostler requeue ID` runs it again.",
    ),
)
