-- Frees a lock that the owner holds if no client stands in its wait queue, and wakes those that listen to its
-- releases. Else it does nothing: the lock is then freed by leave.sql, and the wait queue told by tell.sql behind
-- it.
--
-- The wait queue is read as it was when this statement began. A client that joins it later writes to the lock's row
-- too: that row is another version then than was seen, and nothing is done either.
--
-- Nobody waits for the disk, as in leave.sql.
--
-- $1 name  $2 token  $3 owner  $4 channel, or ''
--
-- Returns one row: 0 (NULL: not held, or not done), token, owner, holds, remaining_ms as they were before, and what it woke by.
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
