-- Reads a client's entry in the directory.
--
-- $1 client
-- Returns client, entry, remaining_ms.
SELECT client, entry, {remaining}
FROM leasehold_locks_clients WHERE client = $1 AND expires_at > clock_timestamp()
