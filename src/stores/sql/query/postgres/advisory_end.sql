-- Ends the session that has the lock of a name, and wakes the waiters.
--
-- $1 name  $2 channel
--
-- Returns a row if there was one.
SELECT pg_terminate_backend(l.pid, 1000), pg_notify($2, '')::text
FROM pg_locks AS l, (SELECT ('x' || encode(substring(sha256($1) FOR 8), 'hex'))::bit(64)::bigint AS key) AS wanted
WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock' AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295
