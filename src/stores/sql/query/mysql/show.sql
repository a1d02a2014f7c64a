-- Reads a lock with its notes about the holder.
--
-- :name
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, if there is a row.
SELECT token, owner, holds, {remaining}, fence, host, pid, thread,
    CAST(GREATEST(0, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)) DIV 1000) AS SIGNED)
FROM leasehold_locks WHERE id = UNHEX(SHA2(:name, 256))
