-- What jobs take: their kind, what workers measured of their attempts, and odds and ends that outlive a restart.

-- Behind the spec again: a kind lies in the row's own page unless the spec is larger than that, and the rest is mostly 0,
-- which is read from the head of the row.
ALTER TABLE jobs ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN outgrown_mib INTEGER NOT NULL DEFAULT 0;

ALTER TABLE attempts ADD COLUMN run_s REAL NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN peak_memory_mib INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN peak_vram_mib INTEGER NOT NULL DEFAULT 0;

CREATE TABLE kept (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
