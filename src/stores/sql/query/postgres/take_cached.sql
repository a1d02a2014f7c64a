-- Takes a lock as take.sql does, unless the lock is reserved for another client of its wait queue.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 host  $7 pid  $8 thread
-- $9 keeper: the channel for a recall, if the client caches the lock (NULL: it does not)  $10 client
-- Returns one row: the fence (NULL: not taken), token, owner, holds and remaining_ms as they were before, the channel for a
-- recall to its holder (NULL: the lock is not cached), and for how many ms the lock is reserved for another client (NULL:
-- it is not).
WITH {seen}, {kept}, took AS (
    {insert} {unless_kept}
    {or_update}
)
SELECT took.fence, {before}, seen.keeper, {kept_ms}
FROM kept LEFT JOIN took ON true LEFT JOIN seen ON true
