-- Takes the lock of a name for the session, unless the server takes no writes. The server then ends the session once it has
-- been idle for a lease. The session's application name shows the owner.
--
-- $1 name  $2 lease_ms  $3 owner
-- Returns whether the lock was taken (NULL: the server takes no writes).
SELECT CASE WHEN taken THEN set_config('idle_session_timeout', $2, false) IS NOT NULL
    AND set_config('application_name', 'leasehold ' || $3, false) IS NOT NULL ELSE taken END
FROM (SELECT CASE WHEN NOT {is_read_only}
    THEN pg_try_advisory_lock({advisory_key}) END AS taken) AS tried
