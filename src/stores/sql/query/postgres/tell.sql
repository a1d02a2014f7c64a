-- Tells the first client in the wait queue of a lock that was freed that it is next, keeps the lock for it for as
-- long as it asked for when it joined, and wakes those that listen to the lock's releases. In a short wait queue the one
-- behind it is told to ask soon, in case.
--
-- A client that has not asked for 5 s is passed over: it is dead or stands still. So is an entry that another
-- statement has locked: its client asks, leaves, or was told just now.
--
-- $1 name  $2 listeners: the channel of those that listen to its releases
--
-- Returns one row: the client that was told (NULL: nobody), and what it woke by.
WITH front AS MATERIALIZED (
    SELECT client FROM leasehold_locks_wait_queue
    WHERE id = sha256($1) AND NOT is_next AND seen > clock_timestamp() - interval '5 seconds'
    ORDER BY since, client LIMIT 1 FOR UPDATE SKIP LOCKED
), told AS (
    UPDATE leasehold_locks_wait_queue SET is_next = true, reserved_until = clock_timestamp()
        + least(coalesce(reserved_until - timestamptz 'epoch', interval '10 milliseconds'), interval '640 milliseconds')
    WHERE id = sha256($1) AND client = (SELECT client FROM front)
    RETURNING client, channel
), behind AS MATERIALIZED (
    SELECT channel FROM leasehold_locks_wait_queue
    WHERE id = sha256($1) AND NOT is_next AND seen > clock_timestamp() - interval '5 seconds'
        AND client <> (SELECT client FROM front)
    ORDER BY since, client LIMIT 9
)
SELECT told.client, pg_notify($2, '')::text,
    CASE WHEN told.client IS NOT NULL THEN pg_notify(told.channel, 'next')::text END,
    CASE WHEN (SELECT count(*) FROM behind) BETWEEN 1 AND 8
        THEN pg_notify((SELECT channel FROM behind LIMIT 1), 'standby')::text END
FROM (SELECT) AS always LEFT JOIN told ON true
