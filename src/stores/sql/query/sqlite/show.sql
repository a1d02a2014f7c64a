-- Reads a lock and what is told of it.
--
-- ?1 name
--
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, if there is a row.
--
-- A lease is kept a millisecond longer than asked for, as in `look.sql`.
SELECT token, owner, holds, runs - (runs > 1), fence, host, pid, thread, max(0, held) FROM (
    SELECT token, owner, holds, expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) AS runs,
        fence, host, pid, thread, CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) - since AS held
    FROM leasehold_locks WHERE name = ?1
)
