-- Takes a lock as take.sql does, unless the lock is reserved for another client of its wait queue.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 host  $7 pid  $8 thread
-- $9 keeper: the channel on which the client is asked to release the lock, if it caches the lock (NULL: it does not)
-- $10 client
-- Returns one row: the fence (NULL: not taken), token, owner, holds, remaining_ms and keeper as they were before, and for
-- how many ms the lock is reserved for another client (NULL: it is not).
WITH {seen}, {reserved}, took AS (
    {insert} {unless_reserved}
    {or_update}
)
SELECT took.fence, {before}, seen.keeper, {reserved_ms}
FROM reserved LEFT JOIN took ON true LEFT JOIN seen ON true
