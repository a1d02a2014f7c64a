-- Ends a session that an owner left behind, if that session holds the lock of a name, and wakes the waiters.
--
-- $1 name  $2 channel  $3 pid  $4 owner
-- Returns a row if the session held the lock.
SELECT pg_terminate_backend(l.pid, 1000), pg_notify($2, '')::text
FROM {advisory_sessions}
    AND l.pid = $3::bigint AND a.application_name = left('leasehold ' || $4, 63)
