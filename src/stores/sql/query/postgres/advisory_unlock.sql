-- Frees the session's lock of a name and wakes the waiters; the session may idle from then on. If the server
-- takes no writes any more, its successor may have given the lock to another before.
--
-- $1 name  $2 channel
--
-- Returns whether the session had it and the server takes writes, and what it woke by.
SELECT freed AND NOT {is_read_only},
    CASE WHEN freed THEN set_config('idle_session_timeout', '0', false)
        || set_config('application_name', 'leasehold', false) || pg_notify($2, '')::text END
FROM (SELECT pg_advisory_unlock({advisory_key}) AS freed) AS tried
