-- Removes a client's entry, and those that have ended.
--
-- $1 client
--
-- Returns the client of each.
DELETE FROM leasehold_locks_clients WHERE client = $1 OR expires_at < clock_timestamp() RETURNING client
