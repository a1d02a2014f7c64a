-- Frees the session's lock of a name and wakes the waiters; the session may idle from then on.
--
-- $1 name  $2 channel
--
-- Returns whether the session had it, and what it woke by.
SELECT freed, CASE WHEN freed THEN set_config('idle_session_timeout', '0', false)
    || set_config('application_name', 'leasehold', false) || pg_notify($2, '')::text END
FROM (SELECT pg_advisory_unlock(('x' || encode(substring(sha256($1) FOR 8), 'hex'))::bit(64)::bigint) AS freed) AS tried
