-- Removes expired rows from the table of clients.
-- Returns the client of each.
DELETE FROM leasehold_locks_clients WHERE expires_at < clock_timestamp() RETURNING client
