-- Reads a client's entry in the directory.
--
-- ?1 client
-- Returns client, entry, remaining_ms.
SELECT client, entry, runs FROM (
    SELECT client, entry, lease_ms, expires_at - {now} AS runs
    FROM leasehold_locks_clients WHERE client = ?1
) WHERE runs > 0 AND runs <= lease_ms + 1000
