-- What ran lately, and which machines were away, without looking at all that ever was.
CREATE INDEX attempts_ended ON attempts (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX feed_of_workers ON feed (seq) WHERE kind = 'worker';
