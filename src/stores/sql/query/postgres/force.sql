-- Frees a lock, whoever holds it, and wakes the waiters. Without a channel it wakes nobody: the caller then runs tell.sql.
-- Also asks a client that caches the lock to release it (recall.sql).
--
-- $1 name  $2 token  $3 channel, or ''
-- Returns one row: 0 if the lock was freed (NULL: it was free); token, owner, holds and remaining_ms as they were before;
-- the last two columns are the notifications.
WITH {seen}, made AS (
    UPDATE leasehold_locks AS held SET owner = '', holds = 0, expires_at = clock_timestamp()
    WHERE id = sha256($1) AND held.token = $2 AND held.owner <> '' AND held.expires_at > clock_timestamp()
    RETURNING 0::bigint AS made
)
SELECT made.made, {before},
    CASE WHEN made.made IS NOT NULL AND $3::text <> '' THEN pg_notify($3, '')::text END,
    CASE WHEN made.made IS NOT NULL AND seen.keeper IS NOT NULL THEN pg_notify(seen.keeper, 'recall')::text END
FROM (SELECT) AS always LEFT JOIN made ON true LEFT JOIN seen ON true
