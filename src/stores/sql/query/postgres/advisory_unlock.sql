-- Frees the session's lock of a name and wakes the waiters. From then on, the session may be idle for any time.
--
-- $1 name  $2 channel
-- Returns whether the session held the lock and the server takes writes; the second column is the notification. If the
-- server takes no writes, another server may have become the primary, and may have granted the lock to another session.
SELECT freed AND NOT {is_read_only},
    CASE WHEN freed THEN set_config('idle_session_timeout', '0', false)
        || set_config('application_name', 'leasehold', false) || pg_notify($2, '')::text END
FROM (SELECT pg_advisory_unlock({advisory_key}) AS freed) AS tried
