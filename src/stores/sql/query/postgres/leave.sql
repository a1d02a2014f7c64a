-- Sets an owner's hold count to `left`. If that is 0, frees the lock and wakes the waiters. The expiry of a lock that stays
-- held is unchanged. Without a channel it wakes no waiter: the caller runs tell.sql next, which then sees the lock free.
--
-- The commit does not wait for the disk: commits that notify run one after the other, so each wait would delay all.
-- If a crash undoes the release, the lock ends with its lease. A later grant is never on the disk without this release.
--
-- $1 name  $2 token  $3 owner  $4 left  $5 channel, or ''
-- Returns one row: 0 (NULL: not held), token, owner, holds and remaining_ms as they were before; the last column is the
-- notification.
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
