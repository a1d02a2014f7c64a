-- Reads a page of clients' entries in the directory.
--
-- $1 after
-- Returns client, entry, remaining_ms of each.
SELECT client, entry, {remaining}
FROM leasehold_locks_clients WHERE client > $1 AND expires_at > clock_timestamp() ORDER BY client LIMIT 250
