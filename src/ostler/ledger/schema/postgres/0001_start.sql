-- Text that is compared or sorted has the collation "C": the order of its characters' numbers, as in every other ledger,
-- and no index that a new version of the system's locales could spoil. An index that a page is read from ends with the
-- number that the page is sorted by; one on text of any length holds the beginning of it, because an entry must fit a third
-- of a page. JSON is kept as text: it is read back whole, exactly as it was written.

CREATE TABLE jobs (
    seq BIGINT PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    "user" TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    request TEXT NOT NULL,
    terms TEXT NOT NULL,
    size BIGINT NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    submitted_at DOUBLE PRECISION NOT NULL,
    queued_at DOUBLE PRECISION NOT NULL,
    finished_at DOUBLE PRECISION,
    waiting TEXT NOT NULL,
    counts TEXT NOT NULL,
    dropped TEXT NOT NULL,
    reason TEXT NOT NULL,
    blocked_on TEXT NOT NULL,
    snapshot TEXT NOT NULL,
    origin TEXT COLLATE "C" NOT NULL,
    sweep TEXT COLLATE "C" NOT NULL,
    kind BIGINT NOT NULL,
    outgrown_mib BIGINT NOT NULL,
    spec BYTEA NOT NULL
);
-- Also what a restart reads: the live states are a few ranges of this index, however long the history is.
CREATE INDEX jobs_by_state ON jobs (state, seq);
CREATE INDEX jobs_by_user ON jobs (left("user", 400), state, seq);
CREATE INDEX jobs_by_name ON jobs (left(name, 400), seq) WHERE name <> '';
CREATE INDEX jobs_of_manifest ON jobs (state, seq) WHERE origin <> '';
CREATE INDEX jobs_by_sweep ON jobs (left(sweep, 400), seq) WHERE sweep <> '';

-- `n` keeps the order in which rows came.

CREATE TABLE tasks (
    n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    job_id TEXT COLLATE "C" NOT NULL,
    idx BIGINT NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    attempt TEXT NOT NULL,
    worker TEXT NOT NULL,
    losses BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    used_s DOUBLE PRECISION NOT NULL,
    started_at DOUBLE PRECISION,
    finished_at DOUBLE PRECISION,
    exit_code BIGINT,
    reason TEXT NOT NULL,
    health TEXT NOT NULL,
    artifact_id TEXT COLLATE "C" NOT NULL,
    metrics TEXT NOT NULL,
    checkpoint TEXT NOT NULL,
    checkpoint_by TEXT NOT NULL,
    result_id TEXT NOT NULL,
    result BYTEA
);
CREATE INDEX tasks_of_job ON tasks (job_id, idx, id);
CREATE INDEX tasks_live ON tasks (state) WHERE state IN ('pending', 'assigned', 'running', 'orphaned');
CREATE INDEX tasks_wanting ON tasks (artifact_id) WHERE artifact_id <> '' AND state = 'succeeded';

CREATE TABLE attempts (
    n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    attempt TEXT COLLATE "C" NOT NULL UNIQUE,
    task_id TEXT COLLATE "C" NOT NULL,
    job_id TEXT COLLATE "C" NOT NULL,
    worker TEXT NOT NULL,
    devices TEXT NOT NULL,
    share_mib BIGINT NOT NULL,
    cores_milli BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    pool TEXT NOT NULL,
    state TEXT NOT NULL,
    held BOOLEAN NOT NULL,
    holder BOOLEAN NOT NULL,
    accepted BOOLEAN NOT NULL,
    assigned_at DOUBLE PRECISION NOT NULL,
    started_at DOUBLE PRECISION,
    finished_at DOUBLE PRECISION,
    stop_reason TEXT NOT NULL,
    reason TEXT NOT NULL,
    why TEXT NOT NULL,
    run_s DOUBLE PRECISION NOT NULL,
    peak_memory_mib BIGINT NOT NULL,
    peak_vram_mib BIGINT NOT NULL
);
CREATE INDEX attempts_of_task ON attempts (task_id, n);
CREATE INDEX attempts_held ON attempts (n) WHERE held;

CREATE TABLE workers (
    id TEXT COLLATE "C" PRIMARY KEY,
    capabilities BYTEA NOT NULL,
    claims BYTEA NOT NULL,
    draining BOOLEAN NOT NULL,
    registered_at DOUBLE PRECISION NOT NULL,
    last_contact DOUBLE PRECISION NOT NULL
);

CREATE TABLE feed (
    seq BIGINT PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX feed_by_subject ON feed (subject, seq);

CREATE TABLE tokens (
    n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    role TEXT NOT NULL,
    "user" TEXT NOT NULL,
    digest TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    revoked_at DOUBLE PRECISION,
    expires_at DOUBLE PRECISION
);

CREATE TABLE receipts (
    key TEXT COLLATE "C" PRIMARY KEY,
    digest TEXT NOT NULL,
    ids TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL
);

CREATE TABLE usage (
    "user" TEXT COLLATE "C" PRIMARY KEY,
    gpu_seconds DOUBLE PRECISION NOT NULL,
    at DOUBLE PRECISION NOT NULL
);

-- Here `n` is what pages are asked for by: it is one more than the newest there is, with no gaps that a row written again
-- would leave.
CREATE TABLE artifacts (
    n BIGINT PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL,
    task_id TEXT COLLATE "C" NOT NULL,
    job_id TEXT COLLATE "C" NOT NULL,
    name TEXT NOT NULL,
    "user" TEXT COLLATE "C" NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    mode TEXT NOT NULL,
    attempt TEXT NOT NULL,
    worker TEXT NOT NULL,
    size BIGINT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    metrics TEXT NOT NULL,
    UNIQUE (id, task_id)
);
CREATE INDEX artifacts_of_job ON artifacts (job_id, n);
CREATE INDEX artifacts_by_model ON artifacts (left(model, 400), n);
CREATE INDEX artifacts_by_user ON artifacts (left("user", 400), n);

-- One row: the manifest that the queue follows.
CREATE TABLE manifest (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    text TEXT NOT NULL,
    file TEXT NOT NULL,
    by TEXT NOT NULL,
    applied_at DOUBLE PRECISION NOT NULL
);

CREATE TABLE kept (
    scope TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    value BYTEA NOT NULL,
    PRIMARY KEY (scope, key)
);

-- One row: which hub leads. Every commit updates it under its own term, so that a hub that was paused while another took
-- over finds no row and writes nothing. `until` is by the server's clock; `backend` and `backend_since` name the session
-- that the leader writes through.
CREATE TABLE leadership (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    term BIGINT NOT NULL,
    holder TEXT NOT NULL,
    until TIMESTAMPTZ NOT NULL,
    lease INTERVAL NOT NULL,
    backend BIGINT NOT NULL,
    backend_since TIMESTAMPTZ NOT NULL
);
INSERT INTO leadership VALUES (1, 0, '', '-infinity', '0', 0, '-infinity');

-- Ends the transaction inside the server, so that its COMMIT can be sent along without waiting for what came of the rest.
CREATE FUNCTION demand(holds BOOLEAN, code TEXT, otherwise TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF NOT holds THEN
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = otherwise;
    END IF;
END $$;
