-- Takes a lock that is free or the owner's already, with count one. A lock that another holds is only read.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 host  $7 pid  $8 thread
-- $9 keeper: its client's channel, if that keeps it until others ask for it (NULL: it does not)
--
-- Returns one row: the fence (NULL: not taken), token, owner, holds, remaining_ms as they were before, and the channel on which
-- its holder can be asked for it (NULL: on none).
WITH {seen}, took AS (
    {insert}
    {or_update}
)
SELECT took.fence, {before}, seen.keeper
FROM (SELECT) AS always LEFT JOIN took ON true LEFT JOIN seen ON true
