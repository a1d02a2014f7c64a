-- Takes a lock that is free or that the owner already holds, with count 1. Only reads a lock that another owner holds.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 host  $7 pid  $8 thread
-- $9 keeper: the channel on which the client is asked to release the lock, if it caches the lock (NULL: it does not)
-- Returns one row: the fence (NULL: not taken), token, owner, holds, remaining_ms and keeper as they were before.
WITH {seen}, took AS (
    {insert}
    {or_update}
)
SELECT took.fence, {before}, seen.keeper
FROM (SELECT) AS always LEFT JOIN took ON true LEFT JOIN seen ON true
