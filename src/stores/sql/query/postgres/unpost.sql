-- Removes a client's entry.
--
-- $1 client
--
-- Returns the client.
DELETE FROM leasehold_locks_clients WHERE client = $1 RETURNING client
