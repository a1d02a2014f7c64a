-- Reads a lock and what is told of it.
--
-- ?1 name  ?2 boot  ?3 up_ms
--
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, if there is a row.
--
-- The rest of the lease is as in `look.sql`.
SELECT token, owner, holds, runs - (runs > 1), fence, host, pid, thread, max(0, held) FROM (
    SELECT token, owner, holds,
        CASE WHEN boot = ?2 THEN ends_up - ?3
            WHEN boot <> '' AND expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > lease_ms + 1000 THEN 0
            ELSE expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) END AS runs,
        fence, host, pid, thread, CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) - since AS held
    FROM leasehold_locks WHERE name = ?1
)
