-- Sets the count of a lock that the owner holds; it then runs for the lease at least.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 count
--
-- Returns one row: the fence (NULL: not held), and token, owner, holds, remaining_ms as they were before.
WITH seen AS MATERIALIZED (
    SELECT token, owner, holds, expires_at FROM leasehold_locks WHERE id = sha256($1)
), took AS (
    UPDATE leasehold_locks AS held SET
        holds = $6,
        expires_at = greatest(held.expires_at, clock_timestamp() + $4::bigint * interval '1 millisecond'),
        fence = CASE WHEN $5
            THEN greatest(held.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
            ELSE held.fence END
    WHERE id = sha256($1) AND held.token = $2 AND held.owner = $3 AND held.expires_at > clock_timestamp()
    RETURNING held.fence
)
SELECT took.fence, seen.token, seen.owner, seen.holds::bigint,
    ceil(extract(epoch FROM seen.expires_at - clock_timestamp()) * 1000)::bigint
FROM (SELECT) AS always LEFT JOIN took ON true LEFT JOIN seen ON true
