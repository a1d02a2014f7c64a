-- Reads a lock.
--
-- ?1 boot  ?2 up_ms  ?3 name
-- Returns token, owner, holds, remaining_ms, if there is a row.
SELECT token, owner, holds, min(left_ms - (left_ms > 1), lease_ms) FROM (
    SELECT token, owner, holds, {remaining} AS left_ms, lease_ms FROM leasehold_locks WHERE name = ?3
)
