-- Removes the directory's entries that have expired.
-- Returns the client of each.
DELETE FROM leasehold_locks_clients WHERE expires_at < clock_timestamp() RETURNING client
