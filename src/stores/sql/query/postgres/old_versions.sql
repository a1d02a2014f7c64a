-- Reads why the server keeps old versions of rows, as far as this user may see: the oldest transaction that has been open
-- for longer than an age, and replication slots that are unused or that keep old versions.
--
-- $1 age_ms
-- Returns a row with an explanation for each.
(
    SELECT format('a transaction of %s (process %s, program %s) is open since %s s', usename, pid,
        coalesce(nullif(application_name, ''), '?'), extract(epoch FROM clock_timestamp() - xact_start)::bigint)
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
        AND xact_start < clock_timestamp() - $1::bigint * interval '1 millisecond'
    ORDER BY xact_start LIMIT 1
)
UNION ALL (
    SELECT format('the replication slot %s, which %s, keeps %s of the log%s', slot_name,
        CASE WHEN active THEN 'is in use' ELSE 'nobody uses' END,
        coalesce(pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 'none'),
        CASE WHEN xmin IS NOT NULL THEN ' and old versions of rows' ELSE '' END)
    FROM pg_replication_slots WHERE NOT active OR xmin IS NOT NULL ORDER BY slot_name
)
