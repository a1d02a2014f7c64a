-- Reads a lock with its notes about the holder.
--
-- ?1 boot  ?2 up_ms  ?3 name
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, if there is a row.
SELECT token, owner, holds, min(left_ms - (left_ms > 1), lease_ms), fence, host, pid, thread, max(0, held) FROM (
    SELECT token, owner, holds, {remaining} AS left_ms, lease_ms, fence, host, pid, thread, {now} - since AS held
    FROM leasehold_locks WHERE name = ?3
)
