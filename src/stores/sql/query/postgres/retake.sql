-- Sets the hold count of a lock that the owner holds, and extends the lock to at least a lease from now.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 count
-- Returns one row: the fence (NULL: not held), and token, owner, holds and remaining_ms as they were before.
WITH {seen}, took AS (
    UPDATE leasehold_locks AS held SET
        holds = $6,
        expires_at = greatest(held.expires_at, {lease_end}),
        fence = CASE WHEN $5 THEN greatest(held.fence + 1, {micros}) ELSE held.fence END
    WHERE {held_by_owner}
    RETURNING held.fence
)
SELECT took.fence, {before}
FROM (SELECT) AS always LEFT JOIN took ON true LEFT JOIN seen ON true
