-- Takes the lock of a name for the session, which then ends when idle for the lease, and shows whose it is. A
-- server that takes no writes gives none.
--
-- $1 name  $2 lease_ms  $3 owner
--
-- Returns whether it was taken (NULL: the server takes no writes).
SELECT CASE WHEN taken THEN set_config('idle_session_timeout', $2, false) IS NOT NULL
    AND set_config('application_name', 'leasehold ' || $3, false) IS NOT NULL ELSE taken END
FROM (SELECT CASE WHEN NOT {is_read_only}
    THEN pg_try_advisory_lock({advisory_key}) END AS taken) AS tried
