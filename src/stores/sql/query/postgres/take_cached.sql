-- Takes a lock that is free or the owner's already, as take.sql does, unless it is kept for another client of
-- its wait queue.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 host  $7 pid  $8 thread
-- $9 keeper: its client's channel, if that keeps it until others ask for it (NULL: it does not)  $10 client
--
-- Returns one row: the fence (NULL: not taken), token, owner, holds, remaining_ms as they were before, the channel on
-- which its holder can be asked for it (NULL: on none), and for how many ms the lock is kept for another (NULL: it is not).
WITH {seen}, {kept}, took AS (
    {insert} {unless_kept}
    {or_update}
)
SELECT took.fence, {before}, seen.keeper, {kept_ms}
FROM kept LEFT JOIN took ON true LEFT JOIN seen ON true
