-- Reads a client's row in the table of clients. Locks no row.
--
-- :client
-- Returns client, entry, remaining_ms.
SELECT client, entry, {remaining}
FROM leasehold_locks_clients WHERE client = :client AND expires_at > UTC_TIMESTAMP(6)
