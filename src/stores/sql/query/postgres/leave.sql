-- Leaves an owner `left` holds; none: frees the lock and wakes the waiters. Never changes how long it runs.
-- Without a channel it wakes nobody: tell.sql does that, which is sent behind it and has to see the lock
-- free.
--
-- A freed row need not be on the disk when this returns: lost in a crash, the lock ends with its lease, and a
-- later grant cannot be on the disk without it. So nobody waits for the disk, nor for the queue of those who
-- notify.
--
-- $1 name  $2 token  $3 owner  $4 left  $5 channel, or ''
--
-- Returns one row: 0 (NULL: not held), token, owner, holds, remaining_ms as they were before, and what it woke by.
WITH seen AS MATERIALIZED (
    SELECT token, owner, holds, expires_at FROM leasehold_locks WHERE id = sha256($1)
), made AS (
    UPDATE leasehold_locks AS held SET
        holds = $4,
        owner = CASE WHEN $4 = 0 THEN '' ELSE held.owner END,
        expires_at = CASE WHEN $4 = 0 THEN clock_timestamp() ELSE held.expires_at END
    WHERE id = sha256($1) AND held.token = $2 AND held.owner = $3 AND held.expires_at > clock_timestamp()
    RETURNING 0::bigint AS made
)
SELECT made.made, seen.token, seen.owner, seen.holds::bigint,
    ceil(extract(epoch FROM seen.expires_at - clock_timestamp()) * 1000)::bigint,
    CASE WHEN made.made IS NOT NULL AND $4 = 0
        THEN set_config('synchronous_commit', 'off', true)
            || CASE WHEN $5::text <> '' THEN pg_notify($5, '')::text ELSE '' END END
FROM (SELECT) AS always LEFT JOIN made ON true LEFT JOIN seen ON true
