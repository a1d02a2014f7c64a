-- Reads a lock.
--
-- ?1 boot  ?2 up_ms  ?3 name
-- Returns token, owner, holds, remaining_ms, if there is a row.
SELECT token, owner, holds, runs - (runs > 1) FROM (
    SELECT token, owner, holds, {runs} AS runs FROM leasehold_locks WHERE name = ?3
)
