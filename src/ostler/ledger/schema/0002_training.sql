-- Training fleets: jobs that a manifest brought, claims, artifacts, checkpoints.

-- They stand behind the spec, but an empty text is read from the head of its row, and a manifest's specs are small.
ALTER TABLE jobs ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN sweep TEXT NOT NULL DEFAULT '';
CREATE INDEX jobs_of_manifest ON jobs (state) WHERE origin <> '';
CREATE INDEX jobs_by_sweep ON jobs (sweep) WHERE sweep <> '';

-- Until now only the values of functions were kept under artifact_id; from now on that is the packed outputs.
ALTER TABLE tasks ADD COLUMN metrics TEXT NOT NULL DEFAULT '{}';
ALTER TABLE tasks ADD COLUMN checkpoint TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN checkpoint_by TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN result_id TEXT NOT NULL DEFAULT '';
UPDATE tasks SET result_id = artifact_id, artifact_id = '' WHERE artifact_id <> '';
CREATE INDEX tasks_wanting ON tasks (artifact_id) WHERE artifact_id <> '' AND state = 'succeeded';

-- What an attempt holds, as it was granted: its job's needs may change while it runs.
ALTER TABLE attempts ADD COLUMN cores_milli INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN memory_mib INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN pool TEXT NOT NULL DEFAULT 'batch';
UPDATE attempts SET
    cores_milli = coalesce(request ->> '$.cores_milli', 0),
    memory_mib = coalesce(request ->> '$.memory_mib', 0),
    pool = coalesce(request ->> '$.pool', 'batch')
FROM jobs WHERE jobs.id = attempts.job_id AND held = 1;

ALTER TABLE workers ADD COLUMN claims BLOB NOT NULL DEFAULT x'';
ALTER TABLE tokens ADD COLUMN expires_at REAL;

CREATE TABLE artifacts (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    job_id TEXT NOT NULL,
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    model TEXT NOT NULL,
    mode TEXT NOT NULL,
    attempt TEXT NOT NULL,
    worker TEXT NOT NULL,
    size INTEGER NOT NULL,
    created_at REAL NOT NULL,
    metrics TEXT NOT NULL,
    UNIQUE (id, task_id)
) STRICT;
CREATE INDEX artifacts_of_job ON artifacts (job_id);
CREATE INDEX artifacts_by_model ON artifacts (model);
CREATE INDEX artifacts_by_user ON artifacts (user);

-- One row: the manifest that the queue follows.
CREATE TABLE manifest (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    text TEXT NOT NULL,
    file TEXT NOT NULL,
    by TEXT NOT NULL,
    applied_at REAL NOT NULL
) STRICT;
