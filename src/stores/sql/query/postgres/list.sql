-- Reads a page of locks, free or held, with their notes about the holder.
--
-- $1 after: the id of the last lock of the page before
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, id, name of each.
SELECT token, owner, holds::bigint, {remaining},
    fence, host, pid, thread, greatest(0, floor(extract(epoch FROM clock_timestamp() - since) * 1000))::bigint,
    id, name
FROM leasehold_locks WHERE id > $1 ORDER BY id LIMIT 500
