-- Ends the session that holds the lock of a name, and wakes the waiters.
--
-- $1 name  $2 channel
-- Returns a row if a session held the lock.
SELECT pg_terminate_backend(l.pid, 1000), pg_notify($2, '')::text
FROM {advisory_sessions}
