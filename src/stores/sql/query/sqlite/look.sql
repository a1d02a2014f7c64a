-- Reads a lock.
--
-- ?1 name
--
-- Returns token, owner, holds, remaining_ms, if there is a row.
--
-- A lease is kept a millisecond longer than asked for, since the clock's milliseconds are cut; that one is not shown.
SELECT token, owner, holds, runs - (runs > 1) FROM (
    SELECT token, owner, holds, expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) AS runs
    FROM leasehold_locks WHERE name = ?1
)
