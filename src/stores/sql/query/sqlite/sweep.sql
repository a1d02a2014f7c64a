-- Removes rows of locks that have been free for long, at most a thousand.
--
-- ?1 age_ms  ?2 boot  ?3 up_ms
--
-- Returns a row for each. Whether a lease is over: see `look.sql`.
DELETE FROM leasehold_locks WHERE name IN (
    SELECT name FROM leasehold_locks
    WHERE expires_at < CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) - ?1 AND (owner = ''
        OR CASE WHEN boot = ?2 THEN ends_up - ?3
            WHEN boot <> '' AND expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > lease_ms + 1000 THEN 0
            ELSE expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) END <= 0)
    LIMIT 1000
) RETURNING 0
