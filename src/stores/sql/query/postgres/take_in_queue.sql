-- Takes a lock as take_unreserved.sql does. If the lock is not free, puts the client into the lock's wait queue, or records
-- there that the client still waits. A client that recorded this within 2 s only reads. A notified client that finds the
-- lock taken returns to its old place, before the others.
--
-- A client that writes to the wait queue also writes to the lock's row, unchanged, so that no release misses the client.
-- If the release comes first, this statement waits for its commit, and reports that the lock is no longer held. If the
-- release began first but reaches the row later, it finds another version of the row than it saw, and changes nothing
-- (free_unawaited.sql). A commit without a grant does not wait for the disk, since a crash empties the queue anyway.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 host  $7 pid  $8 thread
-- $9 keeper: the channel on which the client is asked to release the lock, if it caches the lock (NULL: it does not)
-- $10 client  $11 channel  $12 reserved_ms: for how long a freed lock is to be reserved for the client
-- Returns one row: the fence (NULL: not taken); token, owner, holds, remaining_ms and keeper as they were before; for how
-- many ms the lock is reserved for another client (NULL: it is not); whether the client joined the queue of a lock that
-- became free meanwhile; a column to ignore; how many clients were in the queue, if this one took the lock from there
-- (NULL: it did not).
WITH {seen}, {reserved}, took AS (
    {insert} {unless_reserved}
    {or_update}
), gone AS (
    DELETE FROM leasehold_locks_wait_queue WHERE id = sha256($1) AND client = $10 AND EXISTS (SELECT FROM took)
    RETURNING true
), joined AS (
    INSERT INTO leasehold_locks_wait_queue AS place (id, client, channel, since, seen, is_next, reserved_until)
    SELECT sha256($1), $10, $11, statement_timestamp(), statement_timestamp(), false,
        timestamptz 'epoch' + $12::bigint * interval '1 millisecond'
    WHERE NOT EXISTS (SELECT FROM took) AND NOT EXISTS (
        SELECT FROM seen WHERE token <> $2 AND owner <> '' AND expires_at > clock_timestamp()
    ) AND NOT EXISTS (
        SELECT FROM leasehold_locks_wait_queue WHERE id = sha256($1) AND client = $10 AND NOT is_next
            AND seen > statement_timestamp() - interval '2 seconds'
    )
    ON CONFLICT (id, client) DO UPDATE SET
        channel = excluded.channel, seen = excluded.seen, is_next = false, reserved_until = excluded.reserved_until
    RETURNING true
), touched AS (
    UPDATE leasehold_locks AS held SET holds = held.holds
    WHERE id = sha256($1) AND held.owner <> '' AND held.expires_at > clock_timestamp() AND EXISTS (SELECT FROM joined)
    RETURNING true
)
SELECT took.fence, {before}, seen.keeper, {reserved_ms},
    EXISTS (SELECT FROM joined) AND NOT EXISTS (SELECT FROM touched),
    CASE WHEN EXISTS (SELECT FROM joined) THEN set_config('synchronous_commit', 'off', true) END,
    -- This query does not see the deletion in `gone`, so the count includes this client.
    CASE WHEN EXISTS (SELECT FROM gone) THEN (
        SELECT count(*) FROM leasehold_locks_wait_queue
        WHERE id = sha256($1) AND (client = $10 OR seen > clock_timestamp() - interval '5 seconds')
    ) END
FROM reserved LEFT JOIN took ON true LEFT JOIN seen ON true
