-- Reads a page of the table of clients.
--
-- ?1 after: the last client of the page before
-- Returns client, entry, remaining_ms of each.
SELECT client, entry, left_ms FROM (
    SELECT client, entry, lease_ms, expires_at - {now} AS left_ms
    FROM leasehold_locks_clients WHERE client > ?1
) WHERE left_ms > 0 AND left_ms <= lease_ms + 1000 ORDER BY client LIMIT 250
