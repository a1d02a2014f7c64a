-- Removes the rows of locks that ended long ago, at most a thousand.
--
-- ?1 boot  ?2 up_ms  ?3 age_ms
-- Returns a row for each.
DELETE FROM leasehold_locks WHERE name IN (
    SELECT name FROM leasehold_locks WHERE expires_at < {now} - ?3 AND (owner = '' OR {remaining} <= 0) LIMIT 1000
) RETURNING 0
