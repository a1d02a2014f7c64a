-- Reads a lock with its notes about the holder.
--
-- $1 name
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, if there is a row.
SELECT token, owner, holds::bigint, {remaining},
    fence, host, pid, thread, greatest(0, floor(extract(epoch FROM clock_timestamp() - since) * 1000))::bigint
FROM leasehold_locks WHERE id = sha256($1)
