-- Who did what to which object. Each row is bound to the one before it by its hash, so that a row that is changed,
-- taken out or put in between is found. They go by age alone, the oldest first.
CREATE TABLE audit (
    seq BIGINT PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL,
    actor TEXT COLLATE "C" NOT NULL,
    "user" TEXT COLLATE "C" NOT NULL,
    role TEXT NOT NULL,
    source TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT COLLATE "C" NOT NULL,
    outcome TEXT NOT NULL,
    detail TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE FUNCTION audit_stays() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a row of the audit is never changed';
END $$;
CREATE TRIGGER audit_stays BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION audit_stays();
