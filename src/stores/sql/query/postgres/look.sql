-- Reads a lock.
--
-- $1 name
--
-- Returns token, owner, holds, remaining_ms, if there is a row.
SELECT token, owner, holds::bigint, ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint
FROM leasehold_locks WHERE id = sha256($1)
