-- Reads a page of clients' entries in the directory.
--
-- ?1 after
-- Returns client, entry, remaining_ms of each.
SELECT client, entry, runs FROM (
    SELECT client, entry, lease_ms, expires_at - {now} AS runs
    FROM leasehold_locks_clients WHERE client > ?1
) WHERE runs > 0 AND runs <= lease_ms + 1000 ORDER BY client LIMIT 250
