-- Removes a client's row from the table of clients.
--
-- $1 client
-- Returns the client.
DELETE FROM leasehold_locks_clients WHERE client = $1 RETURNING client
