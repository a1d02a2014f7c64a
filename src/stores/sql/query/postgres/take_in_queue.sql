-- Takes a lock that is free or the owner's already, as take_kept.sql does. Else joins the wait queue of the clients
-- that wait for it, or says there that it still waits. A client that has stood there of late only reads.
--
-- A client that writes to the wait queue writes to the lock's row too, without a change. So a release that began
-- before, and does not see what is written to the wait queue, finds another version of the row than it saw; or this
-- statement waits until the release is committed, and says that the lock is not held any more. Nobody waits
-- for the disk then. One that was told and finds the lock taken stands in front again, where it was.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 host  $7 pid  $8 thread
-- $9 keeper: the channel, if the client keeps the lock until others ask for it (NULL: it does not)  $10 client
-- $11 channel  $12 reserved_ms: for how long a freed lock is to be kept for the client
--
-- Returns one row: the fence (NULL: not taken), token, owner, holds, remaining_ms as they were before, the channel on which
-- its holder can be asked for it (NULL: on none), for how many ms the lock is kept for another (NULL: it is not), whether this
-- wrote to the wait queue of a lock that is free by now, how it wrote, and, if it took the lock out of the wait queue, how many clients stood
-- there.
WITH {seen}, {kept}, took AS (
    {insert} {unless_kept}
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
SELECT took.fence, {before}, seen.keeper, {kept_ms},
    EXISTS (SELECT FROM joined) AND NOT EXISTS (SELECT FROM touched),
    CASE WHEN EXISTS (SELECT FROM joined) THEN set_config('synchronous_commit', 'off', true) END,
    -- As they stood before.
    CASE WHEN EXISTS (SELECT FROM gone) THEN (
        SELECT count(*) FROM leasehold_locks_wait_queue
        WHERE id = sha256($1) AND (client = $10 OR seen > clock_timestamp() - interval '5 seconds')
    ) END
FROM kept LEFT JOIN took ON true LEFT JOIN seen ON true
