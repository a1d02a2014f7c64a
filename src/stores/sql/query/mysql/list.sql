-- Reads a page of the locks, free or held, and what is told of them. Locks no row.
--
-- :after
--
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, id, name of each.
SELECT token, owner, holds, {remaining}, fence, host, pid, thread,
    CAST(GREATEST(0, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)) DIV 1000) AS SIGNED), id, name
FROM leasehold_locks WHERE id > :after ORDER BY id LIMIT 500
