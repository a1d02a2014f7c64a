-- Reads a page of the table of clients. Locks no row.
--
-- :after: the last client of the page before
-- Returns client, entry, remaining_ms of each.
SELECT client, entry, {remaining}
FROM leasehold_locks_clients WHERE client > :after AND expires_at > UTC_TIMESTAMP(6) ORDER BY client LIMIT 250
