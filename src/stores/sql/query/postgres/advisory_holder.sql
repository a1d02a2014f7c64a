-- Reads who holds the lock of a name.
--
-- $1 name
-- Returns the owner, or the name and process id of another program; no row if the lock is free.
SELECT coalesce(nullif(regexp_replace(a.application_name, '^leasehold ', ''), ''), 'another program')
    || CASE WHEN a.application_name LIKE 'leasehold %' THEN '' ELSE ' (pid ' || l.pid || ')' END
FROM {advisory_sessions}
