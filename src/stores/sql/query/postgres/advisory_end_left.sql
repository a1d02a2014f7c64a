-- Ends a session of an owner, if it has the lock of a name, and wakes the waiters.
--
-- $1 name  $2 channel  $3 pid  $4 owner
--
-- Returns a row if it had.
SELECT pg_terminate_backend(l.pid, 1000), pg_notify($2, '')::text
FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid,
    (SELECT ('x' || encode(substring(sha256($1) FOR 8), 'hex'))::bit(64)::bigint AS key) AS wanted
WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock' AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295
    AND l.pid = $3::bigint AND a.application_name = left('leasehold ' || $4, 63)
