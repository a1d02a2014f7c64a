-- Notifies the first client in the wait queue of a freed lock that it is next. Reserves the lock for that client for the
-- time that the client requested when it joined. Also wakes the listeners of the lock's release channel. If at most eight
-- clients wait behind the first, sends 'standby' to the second, which then attempts soon, in case the first one hangs.
--
-- Skips a client that has not made an attempt for 5 s, since it is dead or hangs. Also skips a client whose row another
-- statement has locked, since that statement is the client's own attempt or departure, or has just notified the client.
--
-- $1 name  $2 listeners: the lock's release channel
-- Returns one row: the client that was notified (NULL: none); the other columns are the notifications.
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
