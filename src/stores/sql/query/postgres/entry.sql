-- Reads a client's row in the table of clients.
--
-- $1 client
-- Returns client, entry, remaining_ms.
SELECT client, entry, {remaining}
FROM leasehold_locks_clients WHERE client = $1 AND expires_at > clock_timestamp()
