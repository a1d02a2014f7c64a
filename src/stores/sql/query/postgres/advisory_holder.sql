-- Reads who has the lock of a name.
--
-- $1 name
--
-- Returns the owner, or another program's name and process id; nothing if it is free.
SELECT coalesce(nullif(regexp_replace(a.application_name, '^leasehold ', ''), ''), 'another program')
    || CASE WHEN a.application_name LIKE 'leasehold %' THEN '' ELSE ' (pid ' || l.pid || ')' END
FROM {advisory_sessions}
