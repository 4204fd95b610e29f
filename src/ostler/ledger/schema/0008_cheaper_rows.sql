-- The same indexes with the same rows: for an IN of several values SQLite makes a table of them, and it did so for every
-- row that was written, only to find out whether the row belongs into the index. To compare one after the other costs
-- next to nothing.
DROP INDEX tasks_live;
CREATE INDEX tasks_live ON tasks (state)
    WHERE (state = 'pending' OR state = 'assigned' OR state = 'running' OR state = 'orphaned');
DROP INDEX jobs_ended;
CREATE INDEX jobs_ended ON jobs (finished_at)
    WHERE (state = 'succeeded' OR state = 'failed' OR state = 'cancelled' OR state = 'unschedulable');
