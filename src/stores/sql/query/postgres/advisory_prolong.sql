-- Renews the session's lock, if the server takes writes. The server ends the session once it is then idle for lease_ms.
--
-- $1 lease_ms
-- Returns whether the server takes writes.
SELECT CASE WHEN NOT {is_read_only}
    THEN set_config('idle_session_timeout', $1, false) IS NOT NULL ELSE false END
