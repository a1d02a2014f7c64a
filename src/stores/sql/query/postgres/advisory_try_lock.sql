-- Takes the lock of a name for the session, which then ends when idle for the lease, and shows whose it is.
--
-- $1 name  $2 lease_ms  $3 owner
--
-- Returns whether it was taken.
SELECT taken AND set_config('idle_session_timeout', $2, false) IS NOT NULL
    AND set_config('application_name', 'leasehold ' || $3, false) IS NOT NULL
FROM (SELECT pg_try_advisory_lock(('x' || encode(substring(sha256($1) FOR 8), 'hex'))::bit(64)::bigint) AS taken) AS tried
