-- From here on, attempts that were sent ahead may be kept together, under `ahead:JOB` in the table `kept`, and neither
-- they nor their tasks have rows. The tables stay as they are, but a hub that knows nothing of it would lose them: it is
-- to refuse this file, as it does when it finds a number that it does not have.
SELECT count(*) FROM kept WHERE scope >= 'ahead:' AND scope < 'ahead:~';
