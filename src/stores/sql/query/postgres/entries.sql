-- Reads a page of the table of clients.
--
-- $1 after: the last client of the page before
-- Returns client, entry, remaining_ms of each.
SELECT client, entry, {remaining}
FROM leasehold_locks_clients WHERE client > $1 AND expires_at > clock_timestamp() ORDER BY client LIMIT 250
