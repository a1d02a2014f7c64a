-- Has the session end when idle for the lease, from now on, if the server takes writes.
--
-- $1 lease_ms
--
-- Returns whether the server takes writes.
SELECT CASE WHEN NOT {is_read_only}
    THEN set_config('idle_session_timeout', $1, false) IS NOT NULL ELSE false END
