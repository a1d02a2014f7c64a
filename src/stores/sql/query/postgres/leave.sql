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
WITH {seen}, made AS (
    UPDATE leasehold_locks AS held SET
        holds = $4,
        owner = CASE WHEN $4 = 0 THEN '' ELSE held.owner END,
        expires_at = CASE WHEN $4 = 0 THEN clock_timestamp() ELSE held.expires_at END
    WHERE {held_by_owner}
    RETURNING 0::bigint AS made
)
SELECT made.made, {before},
    CASE WHEN made.made IS NOT NULL AND $4 = 0
        THEN set_config('synchronous_commit', 'off', true)
            || CASE WHEN $5::text <> '' THEN pg_notify($5, '')::text ELSE '' END END
FROM (SELECT) AS always LEFT JOIN made ON true LEFT JOIN seen ON true
