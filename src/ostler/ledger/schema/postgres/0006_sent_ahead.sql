-- From here on, attempts that were sent ahead may be kept together, and neither they nor their tasks have rows. A hub that
-- knows nothing of it would lose them: it is to refuse this ledger, as it does when it finds a number that it does not have.
COMMENT ON TABLE kept IS 'by scope and key; under ahead:JOB attempts that were sent ahead and have no rows of their own';
