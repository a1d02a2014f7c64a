-- Ends the session that has the lock of a name, and wakes the waiters.
--
-- $1 name  $2 channel
--
-- Returns a row if there was one.
SELECT pg_terminate_backend(l.pid, 1000), pg_notify($2, '')::text
FROM {advisory_sessions}
