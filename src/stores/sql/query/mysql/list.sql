-- Reads a page of locks, free or held, with their notes about the holder. Locks no row.
--
-- :after: the id of the last lock of the page before
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, id, name of each.
SELECT token, owner, holds, {remaining}, fence, host, pid, thread,
    CAST(GREATEST(0, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)) DIV 1000) AS SIGNED), id, name
FROM leasehold_locks WHERE id > :after ORDER BY id LIMIT 500
