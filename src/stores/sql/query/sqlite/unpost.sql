-- Removes a client's row from the table of clients.
--
-- ?1 client
DELETE FROM leasehold_locks_clients WHERE client = ?1
