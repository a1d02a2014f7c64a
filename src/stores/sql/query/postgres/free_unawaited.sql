-- Frees a lock that the owner holds, if no client is in its wait queue, and wakes the listeners of its release channel. If
-- a client is in the queue, changes nothing; the caller then frees the lock by leave.sql and notifies the queue by
-- tell.sql.
--
-- The statement reads the wait queue as it was when the statement began. A client that joins later also writes to the
-- lock's row. The row then has another version (xmin) than the statement saw, and the statement changes nothing.
--
-- The commit does not wait for the disk, for the reason given in leave.sql.
--
-- $1 name  $2 token  $3 owner  $4 channel, or ''
-- Returns one row: 0 (NULL: not held, or not freed), token, owner, holds and remaining_ms as they were before; the last
-- column is the notification.
WITH seen AS MATERIALIZED (
    SELECT xmin AS version, token, owner, holds, expires_at FROM leasehold_locks WHERE id = sha256($1)
), made AS (
    UPDATE leasehold_locks AS held SET owner = '', holds = 0, expires_at = clock_timestamp()
    WHERE {held_by_owner}
        AND held.xmin = (SELECT version FROM seen)
        AND (
            SELECT client FROM leasehold_locks_wait_queue
            WHERE id = sha256($1) AND NOT is_next AND seen > clock_timestamp() - interval '5 seconds'
            ORDER BY since, client LIMIT 1
        ) IS NULL
    RETURNING 0::bigint AS made
)
SELECT made.made, {before},
    CASE WHEN made.made IS NOT NULL
        THEN set_config('synchronous_commit', 'off', true)
            || CASE WHEN $4::text <> '' THEN pg_notify($4, '')::text ELSE '' END END
FROM (SELECT) AS always LEFT JOIN made ON true LEFT JOIN seen ON true
