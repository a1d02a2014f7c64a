-- Reads a page of the locks, free or held, and what is told of them.
--
-- ?1 after
--
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, id, name of each.
--
-- A lease is kept a millisecond longer than asked for, as in `look.sql`. A name is its own id.
SELECT token, owner, holds, runs - (runs > 1), fence, host, pid, thread, max(0, held), name, name FROM (
    SELECT token, owner, holds, expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) AS runs,
        fence, host, pid, thread, CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) - since AS held, name
    FROM leasehold_locks WHERE name > ?1 ORDER BY name LIMIT 500
)
