-- What has ended does not stay for ever.

-- What has ended, in the order in which it ended: this is how old jobs are found, a page at a time.
CREATE INDEX jobs_ended ON jobs (finished_at, seq)
    WHERE state IN ('succeeded', 'failed', 'cancelled', 'unschedulable');

-- Who waits for whom, as the specs say: a job stays for as long as one that depends on it has not ended.
CREATE TABLE needs (
    job_id TEXT COLLATE "C" NOT NULL,
    on_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (on_id, job_id)
);
CREATE INDEX needs_of_job ON needs (job_id);
WITH told AS MATERIALIZED (
    SELECT id, convert_from(spec, 'UTF8') AS spec FROM jobs
    WHERE state IN ('pending', 'assigned', 'running', 'orphaned')
), depending AS MATERIALIZED (
    -- PostgreSQL reads no JSON with a NUL in it.
    SELECT * FROM told WHERE position('"depends_on"' IN spec) > 0 AND position('\u0000' IN spec) = 0
)
INSERT INTO needs (job_id, on_id)
    SELECT DISTINCT id, named.value FROM depending, json_array_elements_text(spec::json -> 'depends_on') named;

-- Ids that clients chose, of jobs that are gone: the same spec is not run again by accident, another one is refused.
CREATE TABLE departed (
    id TEXT COLLATE "C" PRIMARY KEY,
    digest TEXT NOT NULL,
    state TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL
);

CREATE INDEX receipts_by_age ON receipts (at);

-- How many jobs have ended in each state, so that nobody has to count them.
INSERT INTO kept (scope, key, value)
    SELECT 'tally', state, convert_to(count(*)::text, 'UTF8') FROM jobs
    WHERE state IN ('succeeded', 'failed', 'cancelled', 'unschedulable') GROUP BY state;
