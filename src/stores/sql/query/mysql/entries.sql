-- Reads a page of clients' entries in the directory. Locks no row.
--
-- :after
-- Returns client, entry, remaining_ms of each.
SELECT client, entry, {remaining}
FROM leasehold_locks_clients WHERE client > :after AND expires_at > UTC_TIMESTAMP(6) ORDER BY client LIMIT 250
