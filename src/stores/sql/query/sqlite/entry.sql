-- Reads a client's row in the table of clients.
--
-- ?1 client
-- Returns client, entry, remaining_ms.
SELECT client, entry, left_ms FROM (
    SELECT client, entry, lease_ms, expires_at - {now} AS left_ms
    FROM leasehold_locks_clients WHERE client = ?1
) WHERE left_ms > 0 AND left_ms <= lease_ms + 1000
