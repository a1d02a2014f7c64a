-- Reads a lock.
--
-- $1 name
-- Returns token, owner, holds, remaining_ms, if there is a row.
SELECT token, owner, holds::bigint, {remaining}
FROM leasehold_locks WHERE id = sha256($1)
