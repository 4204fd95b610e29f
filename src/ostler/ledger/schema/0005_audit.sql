-- Who did what to which object. Each row is bound to the one before it by its hash, so that a row that is changed,
-- taken out or put in between is found. They go by age alone, the oldest first.
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    actor TEXT NOT NULL,
    user TEXT NOT NULL,
    role TEXT NOT NULL,
    source TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL,
    outcome TEXT NOT NULL,
    detail TEXT NOT NULL,
    hash TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_stays BEFORE UPDATE ON audit BEGIN
    SELECT RAISE(ABORT, 'a row of the audit is never changed');
END;
