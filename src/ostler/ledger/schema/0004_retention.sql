-- What has ended does not stay for ever.

-- What has ended, in the order in which it ended: this is how old jobs are found, a page at a time.
CREATE INDEX jobs_ended ON jobs (finished_at) WHERE state IN ('succeeded', 'failed', 'cancelled', 'unschedulable');

-- Who waits for whom, as the specs say: a job stays for as long as one that depends on it has not ended.
CREATE TABLE needs (
    job_id TEXT NOT NULL,
    on_id TEXT NOT NULL,
    PRIMARY KEY (on_id, job_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX needs_of_job ON needs (job_id);
INSERT OR IGNORE INTO needs (job_id, on_id)
    SELECT jobs.id, named.value
    FROM jobs, json_each(iif(json_valid(CAST(spec AS TEXT)), CAST(spec AS TEXT), '{}'), '$.depends_on') named
    WHERE state IN ('pending', 'assigned', 'running', 'orphaned') AND named.type = 'text';

-- Ids that clients chose, of jobs that are gone: the same spec is not run again by accident, another one is refused.
CREATE TABLE departed (
    id TEXT NOT NULL PRIMARY KEY,
    digest TEXT NOT NULL,
    state TEXT NOT NULL,
    at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX receipts_by_age ON receipts (at);

-- How many jobs have ended in each state, so that nobody has to count them.
INSERT INTO kept (scope, key, value)
    SELECT 'tally', state, CAST(count(*) AS BLOB) FROM jobs
    WHERE state IN ('succeeded', 'failed', 'cancelled', 'unschedulable') GROUP BY state;
