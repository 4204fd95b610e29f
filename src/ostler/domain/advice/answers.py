"""What the hub answers with when it cannot do what was asked: one entry for each title of a problem document."""

from ostler.domain.advice.entry import ANSWER, Advice

ANSWERS = (
    Advice(
        "bad-input",
        ANSWER,
        "422 bad input",
        "The request was understood, but a field is unknown or has a value that it cannot have. Nothing was changed.",
        "Every mistake is named in `errors`, with where it is and what is wrong; correct them and send it again. "
        "An unknown field comes with the nearest one that there is.",
    ),
    Advice(
        "unreadable",
        ANSWER,
        "400 unreadable",
        "The bytes are not what they claim to be: not JSON, not TOML, or not text in UTF-8. Nothing was changed.",
        "Look at the line that the message names. A body that was cut short, a comma too many and single quotes in "
        "JSON are the usual causes.",
    ),
    Advice(
        "too-large",
        ANSWER,
        "413 too large",
        "The request is larger than the hub takes: a spec over 256 KiB, a manifest over 4 MiB, more specs in one "
        "submit than there may be.",
        "Put data into files: `--snapshot DIR` takes a folder along, and a job reads the rest from where it runs. "
        "Send many specs in several requests.",
    ),
    Advice(
        "not-authenticated",
        ANSWER,
        "401 not authenticated",
        "There was no token, or one that this hub does not know: it was mistyped, revoked, has expired, or belongs "
        "to another hub.",
        "Give a valid one by `--token`, `--token @FILE` or `OSTLER_TOKEN`. On the hub's own machine, as the hub's "
        "user, none is needed. An operator makes one with `ostler token create --role user --user NAME`.",
    ),
    Advice(
        "not-allowed",
        ANSWER,
        "403 not allowed",
        "The token is good, but its role does not reach this far; or the hub was called by a name that it does not "
        "know, or by a page of another origin.",
        "Ask an operator for a token of another role (docs/access.md has the table). If the message speaks of a "
        "name, add it to `hosts` in the hub's `ostler.toml`.",
    ),
    Advice(
        "no-such-thing",
        ANSWER,
        "404 no such thing",
        "There is no job, worker, artifact, model or secret of that name, or it is somebody else's: to those who "
        "may not see a thing it does not exist.",
        "Look for it with `ostler jobs`, `ostler workers` or `ostler artifacts list`. An id may be cut to any "
        "beginning that only one has; a job's name stands for its newest job. Old jobs are removed after a while "
        "(docs/retention.md).",
    ),
    Advice(
        "not-found",
        ANSWER,
        "404 not found",
        "The hub has no such path: a mistyped address, or a client of a newer version than the hub.",
        "Compare the path with the list in docs/reference/http.md, or with `GET /openapi.json` of this very hub.",
    ),
    Advice(
        "method-not-allowed",
        ANSWER,
        "405 method not allowed",
        "The path is there, but not for this method.",
        "The answer's `Allow` header names the methods that the path has.",
    ),
    Advice(
        "conflict",
        ANSWER,
        "409 conflict",
        "Something of that id or key is there already and differs: a job id with another spec, an "
        "`Idempotency-Key` with another body, an upload that does not go on where the last one ended.",
        "Choose another id or key, or send what was sent before: the same again is no conflict, and answers with "
        "what is there. An upload asks `HEAD` how far it is, and goes on from there.",
    ),
    Advice(
        "quota-exceeded",
        ANSWER,
        "429 quota exceeded",
        "The user has as much as one may have at a time.",
        "Wait until something of theirs has ended, cancel what is not needed, or ask an operator to raise "
        "`[quotas]` in `ostler.toml`.",
    ),
    Advice(
        "too-often",
        ANSWER,
        "429 too often",
        "This token, or for failed logins this address, asks more often than the hub bears with.",
        "Wait for as long as `Retry-After` says. Follow `GET /v1/events` or use `?wait=` in place of asking again "
        "and again; submit many specs in one request. An operator sets the limits under `[limits]`.",
    ),
    Advice(
        "not-running",
        ANSWER,
        "503 not running",
        "The service, or the model, is there but cannot take a call now: it waits for a machine, starts, or is "
        "unhealthy.",
        "Ask again after `Retry-After`. If it stays so, `ostler why NAME` says what it waits for and `ostler logs "
        "NAME` what its process said.",
    ),
    Advice(
        "broke-off",
        ANSWER,
        "502 broke off",
        "The service took the call and ended the connection before it had answered.",
        "Look at its log: `ostler logs NAME`. The hub does not send a call twice, since nobody knows how far the "
        "first one came; whether to repeat it is the caller's to say.",
    ),
    Advice(
        "no-answer",
        ANSWER,
        "504 no answer",
        "A machine behind the hub, or a copy of the hub that looks ahead for `why` and `whatif`, did not do its "
        "part in time.",
        "Ask again. If it goes on, look at that machine with `ostler worker show ID`, and at the hub's own log.",
    ),
    Advice(
        "ledger-error",
        ANSWER,
        "503 ledger error",
        "The hub could not read or write its ledger: the disk is broken or full, a page is damaged, or the "
        "database is away. Nothing was acknowledged that is not kept.",
        "The hub's log has one line with the cause, and docs/ledger.md what to do about each; started again, the "
        "hub has all that it had acknowledged. `ostler doctor` reads every page.",
    ),
    Advice(
        "no-space",
        ANSWER,
        "507 no space",
        "Less than the reserve is free on the hub's disk, so it takes in nothing new. Results, logs and cancels go on.",
        "Make room there: `ostler artifacts gc`, shorter times under `[retention]`, or a larger disk. `ostler "
        "status` shows what is free. Then send it again.",
    ),
    Advice(
        "store-away",
        ANSWER,
        "503 store away",
        "The bucket in which the hub keeps artifacts and snapshots cannot be reached, or refuses what the hub asks "
        "of it. Nothing that was acknowledged is lost: tasks end when their artifacts are there.",
        "The message names the cause. On the hub's machine `ostler doctor` writes, reads and removes a probe; look at "
        "the bucket's name, at the key, and at the network to its endpoint: docs/storage.md. Then send it again.",
    ),
    Advice(
        "store-away",
        ANSWER,
        "503 store away",
        "The bucket that keeps artifacts, snapshots and logs does not answer, refuses, or does not give back what was "
        "written to it. Jobs and their states are not there, and are safe.",
        "Ask again after `Retry-After`. If it stays so, its operator looks at the store, at its address and keys under "
        "`[s3]`, and at docs/storage.md.",
    ),
    Advice(
        "not-leading",
        ANSWER,
        "503 not leading",
        "This hub stands by, and another one leads; or nobody leads at this moment. Nothing was done.",
        "Go where the header `Ostler-Leader` says; if it is empty, ask again in a second. Ostler's own client does "
        "both when it is given all hubs: `OSTLER_HUB=https://a:7600,https://b:7600`.",
    ),
    Advice(
        "internal-error",
        ANSWER,
        "500 internal error",
        "The hub failed to answer, in a way that no request should be able to cause.",
        "Its log has the traceback. What was acknowledged before is safe; please report it with that traceback.",
    ),
)
