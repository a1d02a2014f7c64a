-- Removes rows of locks that have been free for long, at most a thousand.
--
-- ?1 age_ms
DELETE FROM leasehold_locks WHERE name IN (
    SELECT name FROM leasehold_locks
    WHERE expires_at < CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) - ?1 LIMIT 1000
)
