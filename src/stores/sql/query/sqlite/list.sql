-- Reads a page of locks, free or held, with their notes about the holder.
--
-- ?1 boot  ?2 up_ms  ?3 after: the id of the last lock of the page before
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, id, name of each; the id is the name.
SELECT token, owner, holds, min(left_ms - (left_ms > 1), lease_ms), fence, host, pid, thread, max(0, held), name, name FROM (
    SELECT token, owner, holds, {remaining} AS left_ms, lease_ms, fence, host, pid, thread, {now} - since AS held, name
    FROM leasehold_locks WHERE name > ?3 ORDER BY name LIMIT 500
)
