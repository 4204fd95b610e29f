-- Whose a job was that is gone: nobody else may hear how it ended.
ALTER TABLE departed ADD COLUMN owner TEXT NOT NULL DEFAULT '';
