-- Reads who has the lock of a name.
--
-- $1 name
--
-- Returns the owner, or another program's name and process id; nothing if it is free.
SELECT coalesce(nullif(regexp_replace(a.application_name, '^leasehold ', ''), ''), 'another program')
    || CASE WHEN a.application_name LIKE 'leasehold %' THEN '' ELSE ' (pid ' || l.pid || ')' END
FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid,
    (SELECT ('x' || encode(substring(sha256($1) FOR 8), 'hex'))::bit(64)::bigint AS key) AS wanted
WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock' AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295
