-- The number that marks a file as an Ostler ledger: "OSTL".
PRAGMA application_id = 1330861132;

-- Large values (spec, result) stand last in their row, so that a read which leaves them out does not walk
-- through their overflow pages. An index on a table with an integer key ends with that key: jobs_by_state is
-- in fact (state, seq), and feed_by_subject is (subject, seq).

CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    request TEXT NOT NULL,
    terms TEXT NOT NULL,
    size INTEGER NOT NULL,
    state TEXT NOT NULL,
    submitted_at REAL NOT NULL,
    queued_at REAL NOT NULL,
    finished_at REAL,
    waiting TEXT NOT NULL,
    counts TEXT NOT NULL,
    dropped TEXT NOT NULL,
    reason TEXT NOT NULL,
    blocked_on TEXT NOT NULL,
    snapshot TEXT NOT NULL,
    spec BLOB NOT NULL
) STRICT;
-- Also what a restart reads: the live states are a few ranges of this index, however long the history is.
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX jobs_by_user ON jobs (user, state);
CREATE INDEX jobs_by_name ON jobs (name) WHERE name <> '';

-- `n` keeps the order in which rows came. It is also what makes a row cheap to write again: an update touches
-- only the row, which lies beside those of its time, and a small index of live ones; the indexes by id, which
-- are spread out, stay as they are.

CREATE TABLE tasks (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    job_id TEXT NOT NULL,
    idx INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempt TEXT NOT NULL,
    worker TEXT NOT NULL,
    losses INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    used_s REAL NOT NULL,
    started_at REAL,
    finished_at REAL,
    exit_code INTEGER,
    reason TEXT NOT NULL,
    health TEXT NOT NULL,
    artifact_id TEXT NOT NULL,
    result BLOB
) STRICT;
CREATE INDEX tasks_of_job ON tasks (job_id, idx);
CREATE INDEX tasks_live ON tasks (state) WHERE state IN ('pending', 'assigned', 'running', 'orphaned');

CREATE TABLE attempts (
    n INTEGER PRIMARY KEY,
    attempt TEXT NOT NULL UNIQUE,
    task_id TEXT NOT NULL,
    job_id TEXT NOT NULL,
    worker TEXT NOT NULL,
    devices TEXT NOT NULL,
    share_mib INTEGER NOT NULL,
    state TEXT NOT NULL,
    held INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    assigned_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL,
    stop_reason TEXT NOT NULL,
    reason TEXT NOT NULL,
    why TEXT NOT NULL
) STRICT;
CREATE INDEX attempts_of_task ON attempts (task_id);
CREATE INDEX attempts_held ON attempts (held) WHERE held = 1;

CREATE TABLE workers (
    id TEXT NOT NULL PRIMARY KEY,
    draining INTEGER NOT NULL,
    registered_at REAL NOT NULL,
    last_contact REAL NOT NULL,
    capabilities BLOB NOT NULL
) STRICT;

CREATE TABLE feed (
    seq INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX feed_by_subject ON feed (subject);

CREATE TABLE tokens (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    user TEXT NOT NULL,
    digest TEXT NOT NULL,
    created_at REAL NOT NULL,
    revoked_at REAL
) STRICT;

CREATE TABLE usage (
    user TEXT NOT NULL PRIMARY KEY,
    gpu_seconds REAL NOT NULL,
    at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE receipts (
    key TEXT NOT NULL PRIMARY KEY,
    digest TEXT NOT NULL,
    ids TEXT NOT NULL,
    at REAL NOT NULL
) STRICT, WITHOUT ROWID;
